//go:build linux && cgo

// Package nvmltest is a simulated box for the management library: eight RTX PRO 6000, two sockets of two
// switches of two cards, out of go-nvml's mock. Whatever is asked of it that it does not know panics by name. It
// lives in one process, and knows nothing of gpu/sim's.
package nvmltest

import (
	"fmt"
	"sync"
	"time"

	api "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"tandem/gpu/nvml"
)

// Box is the machine. Its server is for gonvml.New.
type Box struct {
	*server.Server

	mu     sync.Mutex
	cards  []state
	events chan api.EventData
}

// state is what tests change of a card.
type state struct {
	nvml.Health
	lost  bool
	noECC bool
}

// New makes a box in order.
func New() (*Box, error) {
	s, err := server.New(server.WithGPUs(gpus.Multiple(8, gpus.Config{
		Name: "NVIDIA RTX PRO 6000 Blackwell Server Edition", Architecture: api.DEVICE_ARCH_BLACKWELL, Brand: api.BRAND_NVIDIA_RTX,
		MemoryMB: 97887, CudaMajor: 12, PciDeviceId: 0x2BB510DE,
	})...), server.WithDriverVersion("580.95.05"), server.WithNVMLVersion("13.580.95.05"), server.WithCUDADriverVersion(13000))
	if err != nil {
		return nil, err
	}
	b := &Box{Server: s, events: make(chan api.EventData, 16)}
	for i, d := range s.Devices {
		b.cards = append(b.cards, state{Health: nvml.Health{
			Free: 97887 << 20, Celsius: 40, Milliwatts: 60_000, LinkGen: 5, LinkWidth: 16,
		}})
		b.describe(i, d.(*server.Device))
	}
	s.EventSetCreateFunc = func() (api.EventSet, api.Return) {
		return &mock.EventSet{
			WaitFunc: func(ms uint32) (api.EventData, api.Return) {
				select {
				case e := <-b.events:
					return e, api.SUCCESS
				case <-time.After(time.Duration(ms) * time.Millisecond):
					return api.EventData{}, api.ERROR_TIMEOUT
				}
			},
			FreeFunc: func() api.Return { return api.SUCCESS },
		}, api.SUCCESS
	}
	return b, nil
}

// Set changes how a card is.
func (b *Box) Set(card int, f func(*nvml.Health)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.cards[card].Health)
}

// WithoutECC makes a card not tell of memory errors.
func (b *Box) WithoutECC(card int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cards[card].noECC = true
}

// Log has the driver log an error of a card; 79 loses the card, as it does.
func (b *Box) Log(card int, x nvml.Xid) {
	b.mu.Lock()
	b.cards[card].lost = b.cards[card].lost || x == 79
	b.mu.Unlock()
	b.events <- api.EventData{Device: b.Devices[card], EventType: api.EventTypeXidCriticalError, EventData: uint64(x)}
}

// tell answers a question about a card, unless it is lost.
func tell[T any](b *Box, card int, f func(*state) T) (T, api.Return) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cards[card].lost {
		var none T
		return none, api.ERROR_GPU_IS_LOST
	}
	return f(&b.cards[card]), api.SUCCESS
}

func (b *Box) describe(i int, d *server.Device) {
	d.UUID = fmt.Sprintf("GPU-c0510000-0000-4000-8000-%012x", i) // gpu/sim's
	d.PciBusID = fmt.Sprintf("00000000:%02X:00.0", 0x10+i)
	d.GetPciInfoFunc = func() (api.PciInfo, api.Return) {
		return tell(b, i, func(*state) (p api.PciInfo) {
			for k, c := range []byte(d.PciBusID) {
				p.BusId[k] = int8(c)
			}
			return p
		})
	}
	d.GetMemoryInfoFunc = func() (api.Memory, api.Return) {
		return tell(b, i, func(s *state) api.Memory {
			return api.Memory{Total: uint64(s.Free + s.Used), Free: uint64(s.Free), Used: uint64(s.Used)}
		})
	}
	d.GetTemperatureFunc = func(api.TemperatureSensors) (uint32, api.Return) {
		return tell(b, i, func(s *state) uint32 { return uint32(s.Celsius) })
	}
	d.GetPowerUsageFunc = func() (uint32, api.Return) {
		return tell(b, i, func(s *state) uint32 { return uint32(s.Milliwatts) })
	}
	d.GetTotalEccErrorsFunc = func(t api.MemoryErrorType, _ api.EccCounterType) (uint64, api.Return) {
		b.mu.Lock()
		none := b.cards[i].noECC
		b.mu.Unlock()
		if none {
			return 0, api.ERROR_NOT_SUPPORTED
		}
		return tell(b, i, func(s *state) uint64 {
			if t == api.MEMORY_ERROR_TYPE_UNCORRECTED {
				return uint64(s.Uncorrected)
			}
			return uint64(s.Corrected)
		})
	}
	gen := func() (int, api.Return) { return tell(b, i, func(s *state) int { return s.LinkGen }) }
	width := func() (int, api.Return) { return tell(b, i, func(s *state) int { return s.LinkWidth }) }
	d.GetCurrPcieLinkGenerationFunc, d.GetCurrPcieLinkWidthFunc = gen, width
	d.GetMaxPcieLinkGenerationFunc = func() (int, api.Return) { return 5, api.SUCCESS }
	d.GetMaxPcieLinkWidthFunc = func() (int, api.Return) { return 16, api.SUCCESS }
	d.GetComputeRunningProcessesFunc = func() ([]api.ProcessInfo, api.Return) {
		return tell(b, i, func(s *state) (ps []api.ProcessInfo) {
			for _, p := range s.Processes {
				ps = append(ps, api.ProcessInfo{Pid: uint32(p.PID), UsedGpuMemory: uint64(p.Bytes)})
			}
			return ps
		})
	}
	d.GetTopologyCommonAncestorFunc = func(o api.Device) (api.GpuTopologyLevel, api.Return) {
		j, r := o.GetIndex()
		switch {
		case r != api.SUCCESS:
			return 0, r
		case i == j:
			return api.TOPOLOGY_INTERNAL, api.SUCCESS
		case i/2 == j/2:
			return api.TOPOLOGY_SINGLE, api.SUCCESS
		case i/4 == j/4:
			return api.TOPOLOGY_NODE, api.SUCCESS
		}
		return api.TOPOLOGY_SYSTEM, api.SUCCESS
	}
	d.GetSupportedEventTypesFunc = func() (uint64, api.Return) {
		return api.EventTypeXidCriticalError | api.EventTypeDoubleBitEccError, api.SUCCESS
	}
	d.RegisterEventsFunc = func(uint64, api.EventSet) api.Return { return api.SUCCESS }
}
