//go:build linux && cgo

package gonvml

import (
	"fmt"
	"strings"
	"sync"
	"time"

	api "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tandem/gpu/nvml"
)

// needed are the functions behind the calls below, in the newest versions that go-nvml picks by itself.
var needed = strings.Fields(`nvmlShutdown nvmlSystemGetDriverVersion nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2
	nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMemoryInfo nvmlDeviceGetCudaComputeCapability
	nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage nvmlDeviceGetTotalEccErrors nvmlDeviceGetCurrPcieLinkGeneration
	nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
	nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetSupportedEventTypes
	nvmlEventSetCreate nvmlDeviceRegisterEvents nvmlEventSetWait_v2 nvmlEventSetFree`)

// Open loads and initializes the library: a path, or empty for libnvidia-ml.so.1.
func Open(path string) (nvml.Library, error) {
	var o []api.LibraryOption
	if path != "" {
		o = append(o, api.WithLibraryPath(path))
	}
	return New(api.New(o...))
}

// New initializes lib, which may be a mock, and watches all its cards for errors.
func New(lib api.Interface) (nvml.Library, error) {
	switch r := lib.Init(); r {
	case api.SUCCESS:
	case api.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1", nvml.ErrNoLibrary)
	default:
		return nil, fmt.Errorf("%w: nvmlInit: %w", nvml.ErrNoDriver, r)
	}
	for _, name := range needed {
		if err := lib.Extensions().LookupSymbol(name); err != nil {
			lib.Shutdown()
			return nil, fmt.Errorf("%w: it has no %s", nvml.ErrOldLibrary, name)
		}
	}
	l := &library{lib: lib}
	if err := l.watch(); err != nil {
		lib.Shutdown()
		return nil, err
	}
	return l, nil
}

// library is initialized until Close.
type library struct {
	lib    api.Interface
	events api.EventSet

	waiting sync.Mutex // an event set is for one waiter
}

// failed is r as an error of a card, or of the library if card is Unknown.
func failed(call string, card int, r api.Return) error {
	switch r {
	case api.SUCCESS:
		return nil
	case api.ERROR_GPU_IS_LOST, api.ERROR_RESET_REQUIRED:
		return fmt.Errorf("%s of card %d: %w: %w", call, card, nvml.ErrLost, r)
	}
	if card == nvml.Unknown {
		return fmt.Errorf("%s: %w", call, r)
	}
	return fmt.Errorf("%s of card %d: %w", call, card, r)
}

func (l *library) watch() error {
	n, r := l.lib.DeviceGetCount()
	if r != api.SUCCESS {
		return failed("count", nvml.Unknown, r)
	}
	if l.events, r = l.lib.EventSetCreate(); r != api.SUCCESS {
		return failed("event set", nvml.Unknown, r)
	}
	for i := range n {
		d, r := l.lib.DeviceGetHandleByIndex(i)
		if r == api.SUCCESS {
			var can uint64
			if can, r = d.GetSupportedEventTypes(); r == api.SUCCESS && can&api.EventTypeXidCriticalError != 0 {
				r = d.RegisterEvents(api.EventTypeXidCriticalError, l.events)
			}
		}
		// A card that is lost already, or that has no events, leaves the others to be watched.
		if r != api.SUCCESS && r != api.ERROR_NOT_SUPPORTED && r != api.ERROR_GPU_IS_LOST {
			l.events.Free()
			return failed("events", i, r)
		}
	}
	return nil
}

func (l *library) Close() error {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	r := l.events.Free()
	if s := l.lib.Shutdown(); r == api.SUCCESS {
		r = s
	}
	return failed("close", nvml.Unknown, r)
}

func (l *library) Version() (string, error) {
	v, r := l.lib.SystemGetDriverVersion()
	return v, failed("driver version", nvml.Unknown, r)
}

func (l *library) card(i int) (api.Device, error) {
	d, r := l.lib.DeviceGetHandleByIndex(i)
	return d, failed("handle", i, r)
}

// facts asks one question after the other until one fails.
type facts struct {
	card int
	err  error
}

// ask is for what every card tells.
func (f *facts) ask(what string, r api.Return) {
	if f.err == nil {
		f.err = failed(what, f.card, r)
	}
}

// may is for what some cards do not tell.
func (f *facts) may(what string, v int, r api.Return) int {
	if r == api.ERROR_NOT_SUPPORTED {
		return nvml.Unknown
	}
	f.ask(what, r)
	return v
}

func (l *library) Cards() ([]nvml.Card, error) {
	n, r := l.lib.DeviceGetCount()
	if r != api.SUCCESS {
		return nil, failed("count", nvml.Unknown, r)
	}
	var cards []nvml.Card
	for i := range n {
		d, err := l.card(i)
		if err != nil {
			return nil, err
		}
		c, f := nvml.Card{Index: i}, facts{card: i}
		c.Name, r = d.GetName()
		f.ask("name", r)
		c.UUID, r = d.GetUUID()
		f.ask("UUID", r)
		pci, r := d.GetPciInfo()
		f.ask("PCI address", r)
		c.PCI = text(pci.BusId[:])
		c.Major, c.Minor, r = d.GetCudaComputeCapability()
		f.ask("compute capability", r)
		m, r := d.GetMemoryInfo()
		f.ask("memory", r)
		c.Bytes = int64(m.Total)
		v, r := d.GetMaxPcieLinkGeneration()
		c.LinkGen = f.may("link", v, r)
		v, r = d.GetMaxPcieLinkWidth()
		c.LinkWidth = f.may("link", v, r)
		if f.err != nil {
			return nil, f.err
		}
		cards = append(cards, c)
	}
	return cards, nil
}

// text is a C string in an array.
func text(c []int8) string {
	var b strings.Builder
	for _, v := range c {
		if v == 0 {
			break
		}
		b.WriteByte(byte(v))
	}
	return b.String()
}

func (l *library) Health(i int) (nvml.Health, error) {
	d, err := l.card(i)
	if err != nil {
		return nvml.Health{}, err
	}
	h, f := nvml.Health{}, facts{card: i}
	m, r := d.GetMemoryInfo()
	f.ask("memory", r)
	h.Used, h.Free = int64(m.Used), int64(m.Free)
	t, r := d.GetTemperature(api.TEMPERATURE_GPU)
	h.Celsius = f.may("temperature", int(t), r)
	p, r := d.GetPowerUsage()
	h.Milliwatts = f.may("power", int(p), r)
	e, r := d.GetTotalEccErrors(api.MEMORY_ERROR_TYPE_CORRECTED, api.VOLATILE_ECC)
	h.Corrected = int64(f.may("memory errors", int(e), r))
	e, r = d.GetTotalEccErrors(api.MEMORY_ERROR_TYPE_UNCORRECTED, api.VOLATILE_ECC)
	h.Uncorrected = int64(f.may("memory errors", int(e), r))
	v, r := d.GetCurrPcieLinkGeneration()
	h.LinkGen = f.may("link", v, r)
	v, r = d.GetCurrPcieLinkWidth()
	h.LinkWidth = f.may("link", v, r)
	ps, r := d.GetComputeRunningProcesses()
	f.may("processes", 0, r)
	for _, p := range ps {
		bytes := int64(p.UsedGpuMemory)
		if bytes < 0 { // all ones: not available
			bytes = nvml.Unknown
		}
		h.Processes = append(h.Processes, nvml.Process{PID: int(p.Pid), Bytes: bytes})
	}
	return h, f.err
}

func (l *library) Distance(a, b int) (nvml.Distance, error) {
	x, err := l.card(a)
	if err != nil {
		return 0, err
	}
	y, err := l.card(b)
	if err != nil {
		return 0, err
	}
	v, r := x.GetTopologyCommonAncestor(y)
	return nvml.Distance(v / 10), failed("topology", a, r) // 0, 10, ... 50
}

func (l *library) Wait(d time.Duration) (nvml.Event, bool, error) {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	e, r := l.events.Wait(uint32(d.Milliseconds()))
	switch r {
	case api.SUCCESS:
	case api.ERROR_TIMEOUT:
		return nvml.Event{}, false, nil
	default:
		return nvml.Event{}, false, failed("wait for events", nvml.Unknown, r)
	}
	card := nvml.Unknown
	if i, r := e.Device.GetIndex(); r == api.SUCCESS {
		card = i
	}
	return nvml.Event{Card: card, Xid: nvml.Xid(e.EventData)}, true, nil
}
