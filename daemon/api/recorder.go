package api

import "time"

// Recorder is told what there is to measure at the endpoint. Its methods are
// called from many goroutines and must return at once. Routes, codes and fields
// come from fixed sets, so that they can be labels.
type Recorder interface {
	// Answered is called when the last byte of an answer went out, or never will.
	// status is what the client saw, 499 if it left; code is "ok", the code of the
	// error, or "client_gone".
	Answered(route string, status int, code string, took time.Duration)
	// FirstToken is the time from a request's arrival to its first token.
	FirstToken(took time.Duration)
	// NextTokens is the time between two outputs of a stream, and the tokens in the second.
	NextTokens(gap time.Duration, tokens int)
	// Ignored is called once for each field of a body that has no effect here.
	Ignored(field string)
}

type noRecorder struct{}

func (noRecorder) Answered(string, int, string, time.Duration) {}
func (noRecorder) FirstToken(time.Duration)                    {}
func (noRecorder) NextTokens(time.Duration, int)               {}
func (noRecorder) Ignored(string)                              {}
