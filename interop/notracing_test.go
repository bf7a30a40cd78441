//go:build !race

package interop

// raced is whether the race detector slows the processes in Go down.
const raced = false
