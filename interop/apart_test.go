//go:build unix

package interop

import "testing"

func (a *arena) apart(t *testing.T) {}
