package protocol

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/wire"
)

// Found is a key that may belong to a held lock.
type Found struct {
	Name string // without prefix
	Kind *Kind
	tick int64 // tick of a CronJob
	key  string
}

// Open returns the protocol with which to inspect the lock. names are derived from its name.
func (f *Found) Open(site *Site, names *Names) Protocol {
	p := f.Kind.Open(site, names)
	if t, is := p.(*Tick); is {
		return t.Cron().At(f.tick)
	}
	return p
}

// scanned is the COUNT of each SCAN. Such a SCAN takes Redis about as long as a script for a lock with a queue.
const scanned = 500

// Search finds the locks of one server by SCAN.
type Search struct {
	prefix  string
	pattern Pattern
	match   string // MATCH of each SCAN; empty for all keys
	cursor  uint64
}

// NewSearch returns a search for locks whose names, after the prefix, match a pattern.
func NewSearch(prefix string, pattern Pattern) *Search {
	s := &Search{prefix: prefix, pattern: pattern}
	if prefix != "" || strings.Trim(pattern.text, "*") != "" {
		// The names of some types are only in additional keys: "{name}:rlock:fairrw".
		s.match = "*" + escape(prefix) + pattern.text + "*"
	}
	return s
}

// Next returns the locks among the next keys. It reports whether there are more keys.
func (s *Search) Next(ctx context.Context, d *wire.Deployment, node redis.UniversalClient, within time.Duration) (found []Found, more bool, err error) {
	type page struct {
		found  []Found
		cursor uint64
	}
	cursor := s.cursor
	p, err := wire.Within(ctx, d, within, func(ctx context.Context) (p page, err error) {
		var keys []string
		if keys, p.cursor, err = node.Scan(ctx, cursor, s.match, scanned).Result(); err != nil {
			return p, err
		}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			if f, ok := s.read(key); ok {
				p.found = append(p.found, f)
			}
		}
		p.found, err = identify(ctx, node, p.found)
		return p, err
	})
	if err != nil {
		return nil, false, err
	}
	s.cursor = p.cursor
	return p.found, p.cursor != 0, nil
}

// read returns the lock to which a key may belong. If Kind is nil, the data at the key decides: see identify.
func (s *Search) read(key string) (f Found, ok bool) {
	f.key = key
	name := key
	if base, what, isAdditional := cutAdditional(key); isAdditional {
		var tick string
		if f.Kind, tick = kindOfKey(what); f.Kind == nil {
			return f, false
		}
		if tick != "" {
			var err error
			if f.tick, err = strconv.ParseInt(tick, 10, 64); err != nil {
				return f, false // not the key of a tick
			}
		}
		name = base
	}
	if f.Name, ok = strings.CutPrefix(name, s.prefix); !ok || f.Name == "" {
		return f, false
	}
	return f, s.pattern.matches(f.Name)
}

// cutAdditional splits an additional key of a lock into the name of the lock and the suffix.
func cutAdditional(key string) (name, what string, ok bool) {
	at := strings.LastIndex(key, ":rlock:")
	if at < 0 {
		if !strings.HasSuffix(key, ":timeout") {
			return "", "", false
		}
		at = len(key) - len(":timeout")
	}
	name, what = key[:at], key[at+1:]
	if inner, braced := strings.CutPrefix(name, "{"); braced {
		if inner, braced = strings.CutSuffix(inner, "}"); braced && !strings.Contains(inner, "{") {
			return inner, what, true
		}
	}
	return name, what, strings.Contains(name, "{") // a key without a brace is not an additional key
}

// identify returns the keys that are locks, as far as a sample of their fields shows, and sets their types. No
// command reads a whole hash, because a hash may be large, and may belong to another program.
func identify(ctx context.Context, node redis.UniversalClient, all []Found) (locks []Found, err error) {
	for part := range slices.Chunk(all, wire.BatchSize) {
		pipe := node.Pipeline()
		kinds := make([]*redis.StatusCmd, len(part))
		for i, f := range part {
			kinds[i] = pipe.Type(ctx, f.key)
		}
		_, _ = pipe.Exec(ctx) // each command has its error
		type candidate struct {
			Found
			ttl                 *redis.DurationCmd
			mode                *redis.StringCmd
			fields              *redis.Cmd
			queue, line, tokens *redis.IntCmd
		}
		var candidates []candidate
		pipe = node.Pipeline()
		for i, f := range part {
			kind, err := kinds[i].Result()
			if err != nil && !elsewhere(err) {
				return nil, err
			}
			if f.Kind != nil {
				if kind == "hash" || f.Kind.ID == "permits" && kind == "zset" {
					locks = append(locks, f)
				}
				continue
			}
			if kind != "hash" {
				continue
			}
			names := &Names{Lock: f.key}
			candidates = append(candidates, candidate{
				f, pipe.PTTL(ctx, f.key), pipe.HGet(ctx, f.key, "mode"), pipe.Do(ctx, "hrandfield", f.key, sample, "withvalues"),
				pipe.Exists(ctx, prefixed("redisson_lock_queue", f.key)), pipe.Exists(ctx, names.Derived("rlock:line")),
				pipe.Exists(ctx, prefixed("redisson_lock_token", f.key)),
			})
		}
		if len(candidates) > 0 {
			_, _ = pipe.Exec(ctx)
		}
		for _, l := range candidates {
			reply, err := l.fields.Result()
			if err != nil && !elsewhere(err) && !wire.IsWrongType(err) {
				return nil, err
			}
			mode := l.mode.Val()
			fields := flat(nil, reply)
			if len(fields) == 0 || l.ttl.Val() < 0 || !holdsLock(fields, mode) {
				continue
			}
			// If the user may not read the additional keys, the type is Lock.
			kind := "lock"
			switch {
			case mode != "":
				kind = "write"
			case l.queue.Val() > 0 || l.line.Val() > 0:
				kind = "fair"
			case l.tokens.Val() > 0:
				kind = "fenced"
			}
			l.Kind = kindsByID[kind]
			locks = append(locks, l.Found)
		}
	}
	return locks, nil
}

// sample is how many fields of a hash are read.
const sample = 8

// aHold matches the id of a hold, of this module or of Redisson, in a field or value of a lock's hash.
var aHold = regexp.MustCompile(`(?i)^(?:[0-9a-z+/]{22}:)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:-?[0-9]+`)

// holdsLock reports whether fields may belong to a lock's hash. If so, the key is inspected:
// scripts/shared/fields.lua decides.
func holdsLock(fields []string, mode string) bool {
	if mode != "" && mode != "read" && mode != "write" {
		return false
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] != "mode" && !aHold.MatchString(fields[i]) && !aHold.MatchString(fields[i+1]) {
			return false
		}
	}
	return true
}

// flat lists fields and values, which a server may send as a list, a list of pairs, or a map.
func flat(list []string, reply any) []string {
	switch r := reply.(type) {
	case string:
		return append(list, r)
	case []any:
		for _, item := range r {
			list = flat(list, item)
		}
	case map[any]any:
		for key, value := range r {
			list = flat(flat(list, key), value)
		}
	}
	return list
}

// elsewhere reports whether the reply of a node is that another node now has the key.
func elsewhere(err error) bool {
	for _, code := range []string{"MOVED", "ASK", "TRYAGAIN"} {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return false
}

// Vote requests the vote of this server for a RedLock.
func (s *Site) Vote(names *Names) Request[State] {
	return newRequest(s, "quorum/inspect", []string{names.Derived("rlock:red")}, nil, readState)
}
