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
		{&v922{20, 0}, 20, farPipelines}, // ten separate connections, or the 20 of the pool
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

// A client with default options has all pipelines to a server far away, and few to a near server.
func TestPipelinesOfADeployment(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{PoolSize: 20})
	defer rdb.Close()
	d, err := Open(rdb, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.stop()
	if s := &d.senders.one; s.near != pipelines || s.far != farPipelines {
		t.Errorf("%d and %d, want %d and %d", s.near, s.far, pipelines, farPipelines)
	}
	var s senders
	for _, c := range []struct{ atATime, near, far int }{{20, pipelines, farPipelines}, {5, pipelines, 5}, {-1, 1, 1}} {
		s.setLimits(d, alone, c.atATime)
		if s.one.near != c.near || s.one.far != c.far {
			t.Errorf("%d at a time: %d and %d, want %d and %d", c.atATime, s.one.near, s.one.far, c.near, c.far)
		}
	}
}
