//go:build unix && !linux

package interop

import "syscall"

// dieWithParent has no counterpart here: the processes end with their input, when
// the test binary is gone.
func dieWithParent() *syscall.SysProcAttr { return nil }
