package wire

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestPipelinesOfOptions(t *testing.T) {
	t.Parallel()
	type v922 struct{ PoolSize, PipelinePoolSize int }
	for _, c := range []struct {
		options any
		pool    int
		want    int
	}{
		{&v922{20, 7}, 20, 5},
		{&v922{20, 0}, 20, farPipelines}, // ten of their own, or they share the 20
		{&v922{100, -1}, 100, farPipelines},
		{&v922{10, 0}, 10, 5},
		{&v922{4, 0}, 4, pipelines},
		{&struct{ PoolSize int }{20}, 20, farPipelines},
	} {
		if n := pipelinesOf(c.options, c.pool); n != c.want {
			t.Errorf("%+v: %d, want %d", c.options, n, c.want)
		}
	}
}

// A client with options that nobody has set has all pipelines to a server that is far away, and few to one that is near.
func TestPipelinesOfADeployment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set       redis.Options
		near, far int
	}{
		"none":  {redis.Options{PoolSize: 20}, pipelines, farPipelines},
		"seven": {redis.Options{PipelinePoolSize: 7}, pipelines, 5},
		"one":   {redis.Options{PipelinePoolSize: 1}, 1, 1},
	} {
		rdb := redis.NewClient(&c.set)
		defer rdb.Close()
		d, err := Open(rdb, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if s := &d.senders.one; s.near != c.near || s.far != c.far {
			t.Errorf("%s: %d and %d, want %d and %d", name, s.near, s.far, c.near, c.far)
		}
		d.stop()
	}
}
