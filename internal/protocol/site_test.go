package protocol

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/seam"
	"github.com/go-rlock/rlock/internal/wire"
)

var bg = context.Background()

type deaf struct{}

func (deaf) Retried(context.Context, string, error) {}
func (deaf) Unpublished(error)                      {}

const uuid = "0189a6c4-9f5e-8abc-8def-0123456789ab" // of a client of this module

// siteOn is a site of a client at a server.
func siteOn(t testing.TB, rdb redis.UniversalClient, change ...func(*wire.Config)) *Site {
	t.Helper()
	cfg := wire.Config{
		Clock:          seam.SystemClock{},
		CommandTimeout: 5 * time.Second,
		UnlockTimeout:  5 * time.Second,
		LongestCall:    5 * time.Second,
		Publish:        wire.PublishPlain,
		Events:         deaf{},
	}
	for _, fn := range change {
		fn(&cfg)
	}
	d, err := wire.Open(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	var ids atomic.Int64
	return &Site{
		Wire:    d,
		Clock:   NewFencingClock(""),
		Served:  servedKey,
		Scripts: loaded(t),
		NewID: func() HoldID {
			n := ids.Add(1)
			return HoldID{fmt.Sprint(uuid, ":", n), n}
		},
		Listen:          func(string, func()) func() { return func() {} },
		Listening:       func(string, string) bool { return false },
		MayBeSubscribed: func(string) bool { return false },
		Client:          uuid,
		CommandTimeout:  5 * time.Second,
		WaiterLease:     30 * time.Second,
	}
}

// mini is a site at a miniredis.
func mini(t testing.TB) (*Site, *miniredis.Miniredis, *redis.Client) {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return siteOn(t, rdb), m, rdb
}

func namesOf(t testing.TB, name string) *Names {
	t.Helper()
	n := &Names{}
	if err := n.Derive(name); err != nil {
		t.Fatal(err)
	}
	return n
}

// must is the outcome of a request that is answered.
func must[T any](t testing.TB, r Request[T]) T {
	t.Helper()
	res := r.Do(bg, 5*time.Second)
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return res.Outcome
}

func want[T comparable](t testing.TB, r Request[T], outcome T) {
	t.Helper()
	if got := must(t, r); got != outcome {
		t.Errorf("%+v, want %+v", got, outcome)
	}
}

func entry(id string) *Acquire {
	return &Acquire{HoldID: HoldID{ID: id}, Lease: time.Minute, Round: NoRound}
}

// of is what a request sends.
func of[T any](r Request[T]) *wire.Request {
	switch r := r.(type) {
	case *scriptRequest[T]:
		return &r.r
	case any:
		if t, ok := r.(*inTurn); ok {
			return &t.first.r
		}
		return &r.(*task).r
	}
	panic("unreachable")
}

const theirs = "6b29fc40-ca47-4067-b31d-00dd010662da" // a client of Redisson's

// dump is all that a database holds.
func dump(t testing.TB, rdb *redis.Client) string {
	t.Helper()
	keys := rdb.Keys(bg, "*").Val()
	slices.Sort(keys)
	var out strings.Builder
	for _, key := range keys {
		var v any
		switch rdb.Type(bg, key).Val() {
		case "string":
			v = rdb.Get(bg, key).Val()
		case "hash":
			v = rdb.HGetAll(bg, key).Val()
		case "list":
			v = rdb.LRange(bg, key, 0, -1).Val()
		case "zset":
			v = rdb.ZRangeWithScores(bg, key, 0, -1).Val()
		}
		fmt.Fprintf(&out, "%s = %v for %v\n", key, v, rdb.PTTL(bg, key).Val())
	}
	return out.String()
}
