package protocol

import (
	"errors"
	"strings"

	"github.com/go-rlock/rlock/internal/wire"
)

// bearing is which types the first keys of scripts about a hold have, by their folder. If one of them has
// another type, there is no such hold, whatever the other keys have. Empty: there may be one.
var bearing = map[string][]string{
	"lock":        {"hash"},
	"fair":        {"hash"},
	"rw":          {"hash"},
	"once":        {"hash"},
	"cron":        {"hash"},
	"queue":       {"hash", "zset"},
	"election":    {"hash", "zset"},
	"places":      {"hash", "zset"},
	"fairpermits": {"hash", "zset"},
	"permits":     {"", "zset"},
}

// overwritten reports whether a request about a hold has failed because the hold has been overwritten. Of other
// keys, such as the keys of waiters, that proves nothing about the hold.
func overwritten(r *wire.Request, err error) bool {
	if !errors.Is(err, wire.ErrForeignKey) {
		return false
	}
	folder, _, _ := strings.Cut(r.Name(), "/")
	keys, _ := r.Words()
	for i, kind := range bearing[folder] {
		if is := wire.KindOf(err, keys[i]); kind != "" && is != "" && is != kind {
			return true
		}
	}
	return false
}
