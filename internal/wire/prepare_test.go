package wire

import (
	"maps"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Prepare sends one PING to each node whose pipelines have a separate pool, and no other PING for a while.
func TestPrepareSendsOnePing(t *testing.T) {
	t.Parallel()
	got := map[string]int{}
	n := &nodes{Client: redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), of: map[byte]*redis.Client{}}
	defer n.Close()
	for i, key := range []byte("abc") {
		o := &redis.Options{Addr: "127.0.0.1:" + strconv.Itoa(2+i)}
		if key != 'c' { // client c may have one pool for all commands
			size := reflect.ValueOf(o).Elem().FieldByName("PipelineReadBufferSize")
			if !size.IsValid() {
				t.Skip("this go-redis has no pool for pipelines alone")
			}
			size.SetInt(4096)
		}
		n.of[key] = redis.NewClient(o)
		n.of[key].AddHook(answering(func(cmd redis.Cmder) { got[string(key)+" "+cmd.Name()]++ }))
		defer n.of[key].Close()
	}
	d, err := Open(n, Config{CommandTimeout: time.Minute, UnlockTimeout: time.Minute, Events: deaf{}, Panics: &Panics{}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	prepare := func(keys ...string) {
		for _, key := range keys {
			d.Prepare(key)
			if err := d.Wait(bg); err != nil {
				t.Fatal(err)
			}
		}
	}
	prepare("a1", "a2", "b1", "a3", "c1")
	want := map[string]int{"a ping": 1, "b ping": 1}
	if poolsApart(n.of['c'].PoolStats()) { // from go-redis 9.23 on
		want["c ping"] = 1
	}
	if !maps.Equal(got, want) {
		t.Errorf("sent: %v, want %v", got, want)
	}
	d.opened.at[n.of['a'].Options().Addr] = time.Now().Add(-prepareEvery)
	prepare("a1", "a2", "b1")
	if want["a ping"] = 2; !maps.Equal(got, want) {
		t.Errorf("sent after a while: %v, want %v", got, want)
	}
}
