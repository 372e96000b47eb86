// Package gonvml is nvml.Library over github.com/NVIDIA/go-nvml.
//
// Two traps of that package are why everything goes through here. A function that is called before the library
// is initialized, or that the library does not have, ends the process with "symbol lookup error": so there is no
// value of our type but after both were checked. And a program that is linked with immediate binding (-z now)
// does not start where the library is missing: do not link with it.
package gonvml
