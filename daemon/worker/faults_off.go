//go:build !faults

package worker

import "tandem/daemon/wire"

// The places where a build with the tag faults can be made to misbehave, for tests
// of the whole appliance. In this build each is empty and the compiler leaves
// nothing of it; what they do in the other is in faults_on.go.

func faultAtStart() {}

func faultAtPlan(*rank) {}

func faultAtSay(*post, wire.Message) bool { return false }

func faultAtHear(m wire.Message, deliver func(wire.Message) error) error { return deliver(m) }

func faultAtTake(_ *rank, attempt uint64, page []byte) {}

func faultAtSeal(e *engine, s *span, u, i int, digest uint64, src []byte) bool { return false }
