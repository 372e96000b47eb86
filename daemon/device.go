package main

import (
	"tandem/daemon/worker"
	"tandem/kernels"
	"tandem/kernels/cpu"
	"tandem/model"
	"tandem/model/family"
)

// cpuDevice is the CPU backend as the workers want it.
type cpuDevice struct{}

func (cpuDevice) Packer() kernels.Packer { return cpu.NewPacker() }
func (cpuDevice) Pin(n int) error        { return cpu.Pin(n) }

func (cpuDevice) options(o worker.DeviceOptions) cpu.Options {
	return cpu.Options{Set: o.Set, Shape: o.Shape, Rope: o.Rope, Team: o.Team, Progress: o.Steps}
}

func (d cpuDevice) SharedBytes(o worker.DeviceOptions) int64 { return cpu.SharedBytes(d.options(o)) }

func (d cpuDevice) Open(o worker.DeviceOptions) (kernels.Backend, error) {
	return cpu.New(d.options(o))
}

// needs is what a model takes on this backend.
func needs(m *family.Model) (int64, model.Layout, error) {
	plan, err := m.Plan(cpu.NewPacker(), m.Info.Context)
	if err != nil {
		return 0, model.Layout{}, err
	}
	return plan.Bytes(), m.Layout(cpu.ElemBytes(cpu.Fine)), nil
}
