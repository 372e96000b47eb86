//go:build !amd64 && !arm64

package hostsync

// pause would tell the processor that the caller is in a spin loop.
func pause() {}
