package main

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/rlocktest"
)

func TestStaleWriteIsRefusedByRedis(t *testing.T) {
	t.Parallel()
	blocks := recipe(t, "Redis", "lua")
	if len(blocks) != 1 {
		t.Fatalf("%q", blocks)
	}
	script := redis.NewScript(blocks[0])
	srv := rlocktest.New(t)
	slow, err := srv.Client().NewLock("report").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := srv.Steal("report")
	for _, c := range []struct {
		token int64
		value string
		want  int64
	}{{next.Token(), "new", 1}, {slow.Token(), "late", 0}, {next.Token(), "newer", 1}} {
		written, err := script.Run(t.Context(), srv.Redis(), []string{"report:data"}, c.token, c.value).Int64()
		if err != nil || written != c.want {
			t.Errorf("%q: %d, %v; want %d", c.value, written, err, c.want)
		}
	}
	if value := srv.Redis().HGet(t.Context(), "report:data", "value").Val(); value != "newer" {
		t.Errorf("%q", value)
	}
}
