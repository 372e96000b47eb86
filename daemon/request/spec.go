package request

import (
	"time"

	"tandem/daemon/fault"
	"tandem/daemon/ident"
	"tandem/model/sample"
)

// Spec is what a client asked, in tokens: text exists only in api.
type Spec struct {
	ID        ident.Request
	Prompt    []int32 // at least one token
	MaxTokens int     // at least 1; prompt plus this fits the window
	Stop      []int32 // token ids that end the answer; they are not delivered
	Params    sample.Params
	Session   string    // for people; may be empty
	Arrived   time.Time // when the request's headers were read
}

// Finish is why an answer ended as it should.
type Finish uint8

// Reasons. Stop: a stop token, or the caller said so because of a stop string.
const (
	FinishStop Finish = iota + 1
	FinishLength
)

func (f Finish) String() string {
	switch f {
	case FinishStop:
		return "stop"
	case FinishLength:
		return "length"
	}
	return ""
}

// Output is what a stream has to say next: tokens, and at the end exactly one
// of Finish and Err.
type Output struct {
	Tokens []int32
	Finish Finish
	Err    *fault.Error
}

// Ended reports whether this is the last output of its stream.
func (o Output) Ended() bool { return o.Finish != 0 || o.Err != nil }
