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
	for began := time.Now(); ; pause(began) {
		err := check()
		if err == nil {
			return nil
		}
		if f := (fatal{}); errors.As(err, &f) {
			return fmt.Errorf("redistest: waiting for %s: %w", what, f.error)
		}
		if time.Since(began) > patience {
			return fmt.Errorf("redistest: waited %v for %s; last seen: %w", patience, what, err)
		}
	}
}

// pause is between two looks of a wait that began then. A server starts in some milliseconds, a cluster in two
// seconds, and each check costs a request or more.
func pause(began time.Time) {
	time.Sleep(min(max(time.Since(began)/8, 2*time.Millisecond), 50*time.Millisecond))
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
