//go:build amd64 || arm64

package hostsync

// pause tells the processor that the caller is in a spin loop.
//
//go:noescape
func pause()
