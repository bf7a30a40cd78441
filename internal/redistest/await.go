package redistest

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// fatal marks an error of a check that no waiting will mend.
type fatal struct{ error }

// await repeats check until it returns nil. What it returns otherwise is the
// state last seen, and part of the error when patience ends.
func await(what string, check func() error) error {
	end := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if f := (fatal{}); errors.As(err, &f) {
			return fmt.Errorf("redistest: waiting for %s: %w", what, f.error)
		}
		if time.Now().After(end) {
			return fmt.Errorf("redistest: waited %v for %s; last seen: %w", patience, what, err)
		}
		time.Sleep(pollInterval)
	}
}

// field is the value of a line "name:value" of INFO and its like, or "".
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
