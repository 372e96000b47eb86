// Package gorgonia is driver.Driver over gorgonia.org/cu v0.9.6 as far as that goes, and over package nvidia for
// the rest. It exists only with the build tag gorgonia; scripts/gorgonia builds and tests it.
//
// # Why it is not the default
//
// Context. gorgonia.org/cu is the well-known binding of the driver API for Go, so it is what one expects here.
// What we found, reading v0.9.6 (June 2024) and building it:
//
//   - It lacks much of what we need: memory for other processes, by descriptor or by name; registered host
//     memory; virtual memory; more than 48 KiB of shared memory a block; the compiler's log; launching a graph,
//     and recording one. Its launches take parameters of eight bytes only, one C allocation for each.
//   - Package cu calls cuInit while the program starts, prints to standard output if that fails and exits: a
//     daemon that serves from a CPU could not start on a machine without a card.
//   - It needs cuda.h and a library to link with on every machine that builds, and does not compile with the
//     headers of CUDA 13 (seven signatures changed).
//   - It binds nothing to threads: whoever uses it locks one and sets the context, for every call.
//
// Decision. The default is package nvidia, which loads the driver at run time and needs nothing to build. This
// package does through cu all that cu does: memory, copies, fills, streams, events and words. It passes the same
// suite, so who prefers cu can have it.
//
// Consequences. Module gorgonia.org/cu is in go.mod, though nothing of it is in a build without the tag. A build
// with it links scripts/gorgonia's archive, whose functions look for the driver at run time, so that even that
// program starts without one.
package gorgonia
