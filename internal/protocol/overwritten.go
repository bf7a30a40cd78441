package protocol

import (
	"errors"
	"strings"

	"github.com/go-rlock/rlock/internal/wire"
)

// bearing has the types of the first keys of the scripts about a hold, by folder. If one of these keys has another
// type, the hold does not exist, no matter what the other keys have. An empty type proves nothing: the hold may exist.
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

// overwritten reports whether a request about a hold has failed because other data has replaced the hold. A wrong
// type of another key, such as a key of waiters, proves nothing about the hold.
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
