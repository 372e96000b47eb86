// Package observe is how the appliance tells what it does: structured events
// in the journal or on stderr, and metrics. It owns the list of events with
// their levels and message identifiers, the names of fields and metrics, and
// the ways out of the process. What happened, and when it is worth telling, is
// decided by its callers.
//
// Telling never waits. Events go through a bounded queue; one that does not fit
// is dropped and counted, and the count is told as soon as there is room.
// Metrics are counters that are added to, or are computed from a Snapshot when
// somebody asks.
//
// Prompts and answers are never told.
package observe
