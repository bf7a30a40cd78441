// Package klog has some names of klog, and of packages that exit only after an error.
package klog

func Fatalf(format string, args ...any) {}
func FatalDepth(depth int, args ...any) {}
func ExitDepth(depth int, args ...any)  {}
func Errorf(format string, args ...any) {}
func FatalIf(err error)                 {}
func PanicOnError(err error)            {}
