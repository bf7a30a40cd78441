//go:build !unix

// Package sqltest runs database servers for tests, on Unix.
package sqltest

import "testing"

// Postgres skips the test.
func Postgres(t testing.TB) (dsn string) { t.Skip("it needs Unix"); return "" }

// MySQL skips the test.
func MySQL(t testing.TB) (dsn string) { t.Skip("it needs Unix"); return "" }
