package redistest

import (
	"fmt"
	"strings"
)

// HoldID is the id of a hold that no client has, for a name such as "dead:1": a UUID of the letters, and the number.
// Scripts take no other text for a hold.
func HoldID(name string) string {
	who, number, ok := strings.Cut(name, ":")
	digits := fmt.Sprintf("%024s", fmt.Sprintf("%x", who))
	if !ok || len(digits) > 24 {
		panic("no name of a hold: " + name)
	}
	return fmt.Sprintf("%s-%s-4000-8000-%s:%s", digits[:8], digits[8:12], digits[12:], number)
}
