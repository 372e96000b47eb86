package wire

import (
	"math"

	"tandem/daemon/fault"
	"tandem/gpu/pagepool"
	"tandem/model/sample"
)

// Attempts cross the wire by their sequence number; the frame has the generation.

// Setup is the first message to a rank: all it will ever be told about its place.
// The JSON form is spawn's.
type Setup struct{ JSON []byte }

// Expect tells a decode rank which pages of an attempt will come, from where and
// into which of its own. Answered by Reserved, then Landed and Verified.
type Expect struct {
	Attempt uint64
	Source  uint32 // prefill replica
	Slot    uint32 // of the source's board
	Src     []pagepool.Page
	Dst     []pagepool.Page // as many; the same pages where memory is shared
}

// Prefill gives an attempt to the leader of a prefill replica: compute Tokens
// from position 0 into Src. Dst is where push puts them, else empty.
type Prefill struct {
	Attempt uint64
	Target  uint32 // decode replica
	Slot    uint32
	Tokens  []int32
	Src     []pagepool.Page
	Dst     []pagepool.Page
}

// Join gives an attempt to the leader of a decode replica: its cache holds all but
// the last of Tokens. Prompt is how many of them the client sent; the others were
// produced by earlier attempts.
type Join struct {
	Attempt   uint64
	Prompt    uint32
	MaxTokens uint32 // tokens still to produce
	Tokens    []int32
	Stop      []int32
	Params    sample.Params
	Pages     []pagepool.Page
}

// Grow adds pages to an attempt that a decode replica runs, after the At that it has.
type Grow struct {
	Attempt uint64
	At      uint32
	Pages   []pagepool.Page
}

// Quiesce tells the leader of a replica to have all ranks leave an attempt alone
// for good. Each rank answers Quiet once nothing it started can touch the attempt's
// pages. It is right at any time, also before the attempt is known and after it is
// done.
type Quiesce struct{ Attempt uint64 }

// Dump asks for the stacks of the process.
type Dump struct{}

// Stop asks the rank to exit.
type Stop struct{}

// Hello is a rank's first message.
type Hello struct {
	PID      uint32
	Revision string
	Layout   uint64 // fingerprint of the KV layout that the rank computed
}

// Ready says that the rank can work.
type Ready struct{ Backend string }

// Reserved answers Expect.
type Reserved struct{ Attempt uint64 }

// Sealed says that a prefill rank has published pages of an attempt. Done says
// that it was the last and that the rank will not touch the attempt again.
type Sealed struct {
	Attempt uint64
	Tokens  uint32 // computed so far
	Pages   uint32 // published so far
	Done    bool
}

// Landed says that a decode rank holds that many pages, each checked.
type Landed struct {
	Attempt uint64
	Pages   uint32
}

// Verified says that a decode rank holds all pages and found all of them sealed
// and their digests right, after the last of them had landed.
type Verified struct{ Attempt uint64 }

// Step is what one step of a decode replica brought.
type Step struct {
	Seq     uint64
	Results []Result
}

// Result is one sequence's part of a step.
type Result struct {
	Attempt uint64
	Token   int32
	Finish  uint8 // a request.Finish; 0: goes on
}

// Quiet answers Quiesce, from each rank of the replica; decode ranks also say it
// unasked after a sequence ended by itself.
type Quiet struct{ Attempt uint64 }

// Failed says that the rank gave an attempt up. It still needs Quiesce.
type Failed struct {
	Attempt uint64
	Kind    fault.Kind
	Text    string
}

// Fatal is a rank's last message.
type Fatal struct{ Text string }

// Dumped answers Dump.
type Dumped struct{ Text string }

// Progress says how far a long start has come, in bytes.
type Progress struct{ Done, Total uint64 }

func alloc(t Type) Message {
	switch t {
	case TSetup:
		return new(Setup)
	case TExpect:
		return new(Expect)
	case TPrefill:
		return new(Prefill)
	case TJoin:
		return new(Join)
	case TGrow:
		return new(Grow)
	case TQuiesce:
		return new(Quiesce)
	case TDump:
		return new(Dump)
	case TStop:
		return new(Stop)
	case THello:
		return new(Hello)
	case TReady:
		return new(Ready)
	case TReserved:
		return new(Reserved)
	case TSealed:
		return new(Sealed)
	case TLanded:
		return new(Landed)
	case TVerified:
		return new(Verified)
	case TStep:
		return new(Step)
	case TQuiet:
		return new(Quiet)
	case TFailed:
		return new(Failed)
	case TFatal:
		return new(Fatal)
	case TDumped:
		return new(Dumped)
	case TProgress:
		return new(Progress)
	}
	return nil
}

// Type of each message.
func (*Setup) Type() Type    { return TSetup }
func (*Expect) Type() Type   { return TExpect }
func (*Prefill) Type() Type  { return TPrefill }
func (*Join) Type() Type     { return TJoin }
func (*Grow) Type() Type     { return TGrow }
func (*Quiesce) Type() Type  { return TQuiesce }
func (*Dump) Type() Type     { return TDump }
func (*Stop) Type() Type     { return TStop }
func (*Hello) Type() Type    { return THello }
func (*Ready) Type() Type    { return TReady }
func (*Reserved) Type() Type { return TReserved }
func (*Sealed) Type() Type   { return TSealed }
func (*Landed) Type() Type   { return TLanded }
func (*Verified) Type() Type { return TVerified }
func (*Step) Type() Type     { return TStep }
func (*Quiet) Type() Type    { return TQuiet }
func (*Failed) Type() Type   { return TFailed }
func (*Fatal) Type() Type    { return TFatal }
func (*Dumped) Type() Type   { return TDumped }
func (*Progress) Type() Type { return TProgress }

func putPages(b []byte, ps []pagepool.Page) []byte {
	b = putU32(b, uint32(len(ps)))
	for _, p := range ps {
		b = putU32(putU32(b, p.Index), p.Epoch)
	}
	return b
}

func (r *reader) pages() []pagepool.Page {
	ps := make([]pagepool.Page, r.count(8))
	for i := range ps {
		ps[i] = pagepool.Page{Index: r.u32(), Epoch: r.u32()}
	}
	return ps
}

func putF64(b []byte, v float64) []byte { return putU64(b, math.Float64bits(v)) }
func (r *reader) f64() float64          { return math.Float64frombits(r.u64()) }

func putParams(b []byte, p *sample.Params) []byte {
	for _, v := range []float64{p.Temperature, p.TopP, p.MinP, p.Presence, p.Frequency, p.Repetition} {
		b = putF64(b, v)
	}
	b = putU64(putU32(b, uint32(p.TopK)), p.Seed)
	b = putU32(b, uint32(len(p.Bias)))
	for _, x := range p.Bias {
		b = putU32(putU32(b, uint32(x.Token)), math.Float32bits(x.Value))
	}
	return b
}

func (r *reader) params(p *sample.Params) {
	for _, v := range []*float64{&p.Temperature, &p.TopP, &p.MinP, &p.Presence, &p.Frequency, &p.Repetition} {
		*v = r.f64()
	}
	p.TopK, p.Seed = int(int32(r.u32())), r.u64()
	if n := r.count(8); n > 0 {
		p.Bias = make([]sample.Bias, n)
		for i := range p.Bias {
			p.Bias[i] = sample.Bias{Token: int32(r.u32()), Value: math.Float32frombits(r.u32())}
		}
	}
}

func (m *Setup) append(b []byte) []byte { return putBytes(b, m.JSON) }
func (m *Setup) read(r *reader)         { m.JSON = r.bytes() }

func (m *Expect) append(b []byte) []byte {
	b = putU32(putU32(putU64(b, m.Attempt), m.Source), m.Slot)
	return putPages(putPages(b, m.Src), m.Dst)
}

func (m *Expect) read(r *reader) {
	m.Attempt, m.Source, m.Slot = r.u64(), r.u32(), r.u32()
	m.Src, m.Dst = r.pages(), r.pages()
}

func (m *Prefill) append(b []byte) []byte {
	b = putU32(putU32(putU64(b, m.Attempt), m.Target), m.Slot)
	return putPages(putPages(putI32s(b, m.Tokens), m.Src), m.Dst)
}

func (m *Prefill) read(r *reader) {
	m.Attempt, m.Target, m.Slot = r.u64(), r.u32(), r.u32()
	m.Tokens, m.Src, m.Dst = r.i32s(), r.pages(), r.pages()
}

func (m *Join) append(b []byte) []byte {
	b = putU32(putU32(putU64(b, m.Attempt), m.Prompt), m.MaxTokens)
	b = putI32s(putI32s(b, m.Tokens), m.Stop)
	return putPages(putParams(b, &m.Params), m.Pages)
}

func (m *Join) read(r *reader) {
	m.Attempt, m.Prompt, m.MaxTokens = r.u64(), r.u32(), r.u32()
	m.Tokens, m.Stop = r.i32s(), r.i32s()
	r.params(&m.Params)
	m.Pages = r.pages()
}

func (m *Grow) append(b []byte) []byte {
	return putPages(putU32(putU64(b, m.Attempt), m.At), m.Pages)
}
func (m *Grow) read(r *reader) { m.Attempt, m.At, m.Pages = r.u64(), r.u32(), r.pages() }

func (m *Quiesce) append(b []byte) []byte { return putU64(b, m.Attempt) }
func (m *Quiesce) read(r *reader)         { m.Attempt = r.u64() }

func (*Dump) append(b []byte) []byte { return b }
func (*Dump) read(*reader)           {}

func (*Stop) append(b []byte) []byte { return b }
func (*Stop) read(*reader)           {}

func (m *Hello) append(b []byte) []byte {
	return putU64(putText(putU32(b, m.PID), m.Revision, MaxText), m.Layout)
}
func (m *Hello) read(r *reader) { m.PID, m.Revision, m.Layout = r.u32(), r.text(MaxText), r.u64() }

func (m *Ready) append(b []byte) []byte { return putText(b, m.Backend, MaxText) }
func (m *Ready) read(r *reader)         { m.Backend = r.text(MaxText) }

func (m *Reserved) append(b []byte) []byte { return putU64(b, m.Attempt) }
func (m *Reserved) read(r *reader)         { m.Attempt = r.u64() }

func (m *Sealed) append(b []byte) []byte {
	b = putU32(putU32(putU64(b, m.Attempt), m.Tokens), m.Pages)
	if m.Done {
		return append(b, 1)
	}
	return append(b, 0)
}

func (m *Sealed) read(r *reader) {
	m.Attempt, m.Tokens, m.Pages = r.u64(), r.u32(), r.u32()
	switch d := r.u8(); d {
	case 0, 1:
		m.Done = d == 1
	default:
		r.fail("done is %d", d)
	}
}

func (m *Landed) append(b []byte) []byte { return putU32(putU64(b, m.Attempt), m.Pages) }
func (m *Landed) read(r *reader)         { m.Attempt, m.Pages = r.u64(), r.u32() }

func (m *Verified) append(b []byte) []byte { return putU64(b, m.Attempt) }
func (m *Verified) read(r *reader)         { m.Attempt = r.u64() }

func (m *Step) append(b []byte) []byte {
	b = putU32(putU64(b, m.Seq), uint32(len(m.Results)))
	for _, x := range m.Results {
		b = append(putU32(putU64(b, x.Attempt), uint32(x.Token)), x.Finish)
	}
	return b
}

func (m *Step) read(r *reader) {
	m.Seq = r.u64()
	m.Results = make([]Result, r.count(13))
	for i := range m.Results {
		m.Results[i] = Result{Attempt: r.u64(), Token: int32(r.u32()), Finish: r.u8()}
	}
}

func (m *Quiet) append(b []byte) []byte { return putU64(b, m.Attempt) }
func (m *Quiet) read(r *reader)         { m.Attempt = r.u64() }

func (m *Failed) append(b []byte) []byte {
	return putText(append(putU64(b, m.Attempt), byte(m.Kind)), m.Text, MaxText)
}

func (m *Failed) read(r *reader) {
	m.Attempt, m.Kind, m.Text = r.u64(), fault.Kind(r.u8()), r.text(MaxText)
	if int(m.Kind) >= len(fault.Kinds()) {
		r.fail("kind %d", m.Kind)
	}
}

func (m *Fatal) append(b []byte) []byte { return putText(b, m.Text, MaxText) }
func (m *Fatal) read(r *reader)         { m.Text = r.text(MaxText) }

func (m *Dumped) append(b []byte) []byte { return putText(b, m.Text, MaxReply-4) }
func (m *Dumped) read(r *reader)         { m.Text = r.text(MaxReply - 4) }

func (m *Progress) append(b []byte) []byte { return putU64(putU64(b, m.Done), m.Total) }
func (m *Progress) read(r *reader)         { m.Done, m.Total = r.u64(), r.u64() }
