package quorum

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/faultproxy"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
)

// All nodes of one lock see one key, in whatever order a process lists its clients;
// and a server has one vote, however many clients lead to it.
func TestRedLockRefusesNodesThatDoNotAgree(t *testing.T) {
	t.Parallel()
	at := func(addr string, opts ...rlock.Option) *rlock.Client {
		return locktest.NewClient(t, locktest.Dialer(addr)(t, nil), opts...)
	}
	sentinels := &redis.FailoverOptions{MasterName: "one", SentinelAddrs: []string{"127.0.0.1:1"}}
	sentinel := func() *rlock.Client {
		rdb := redis.NewFailoverClient(sentinels)
		t.Cleanup(func() { _ = rdb.Close() })
		return locktest.NewClient(t, rdb)
	}
	other := at("10.0.0.9:7")
	for what, c := range map[string]struct {
		clients []*rlock.Client
		says    string // "": they are right
	}{
		"prefix of the first":  {[]*rlock.Client{at("10.0.0.1:7", rlock.WithPrefix("app:")), at("10.0.0.2:7"), other}, `client 0 has the prefix "app:", and client 1 has ""`},
		"prefix of the last":   {[]*rlock.Client{at("10.0.0.1:7"), other, at("10.0.0.2:7", rlock.WithPrefix("app:"))}, `client 0 has the prefix "", and client 2 has "app:"`},
		"one prefix":           {[]*rlock.Client{at("10.0.0.1:7", rlock.WithPrefix("a:")), at("10.0.0.2:7", rlock.WithPrefix("a:"))}, ""},
		"one address":          {[]*rlock.Client{other, at("10.0.0.1:7"), at("10.0.0.1:7")}, "clients 1 and 2 connect to one server, 10.0.0.1:7"},
		"other ports":          {[]*rlock.Client{other, at("10.0.0.1:7"), at("10.0.0.1:8")}, ""},
		"other case":           {[]*rlock.Client{other, at("Redis.example.com:7"), at("redis.example.com.:7")}, "one server, redis.example.com:7"},
		"this machine":         {[]*rlock.Client{other, at("127.0.0.1:7"), at("localhost:7")}, "one server, 127.0.0.1:7"},
		"this machine in IPv6": {[]*rlock.Client{at("[::1]:7"), other, at("LOCALHOST:7")}, "clients 0 and 2"},
		"mapped":               {[]*rlock.Client{at("[::ffff:10.0.0.1]:7"), other, at("10.0.0.1:7")}, "one server, 10.0.0.1:7"},
		"IPv6":                 {[]*rlock.Client{at("[2001:db8::1]:7"), other, at("[2001:DB8:0::1]:7")}, "one server, [2001:db8::1]:7"},
		"no host":              {[]*rlock.Client{at(":7"), other, at("127.0.0.1:7")}, "clients 0 and 2"},
		"another loopback":     {[]*rlock.Client{at("127.0.0.2:7"), other, at("127.0.0.1:7")}, ""},
		"socket":               {[]*rlock.Client{at("/tmp/none/redis.sock"), at("/tmp/other.sock"), at("/tmp//none/redis.sock")}, "one server, /tmp/none/redis.sock"},
		"default":              {[]*rlock.Client{at(""), other, at("localhost:6379")}, "one server, 127.0.0.1:6379"},
		"sentinels":            {[]*rlock.Client{sentinel(), sentinel(), other}, ""}, // nothing shows that they lead to one master
	} {
		t.Run(what, func(t *testing.T) {
			l, err := rlock.NewRedLock("stock", c.clients)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "" && (l != nil || !errors.Is(err, rlock.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("want %q, got %v, %v", c.says, l, err)
			}
		})
	}
}

// Two addresses of one server are noticed by its run_id, before it has two votes.
func TestQuarantineDetectsOneServerWithTwoAddresses(t *testing.T) {
	t.Parallel()
	servers := redistest.StartMasters(t, 3)
	addrs := addressesOf(servers)
	bootstrap(t, addrs)
	servers[2].Kill() // so that there is no quorum without the second vote
	twice := []string{addrs[0], faultproxy.New(t, addrs[0]).Addr(), addrs[2]}
	l := stockLock(t, clientsAt(t, twice), true)
	for what, call := range map[string]func() error{
		"TryLock": func() error { _, err := l.TryLock(bg); return err },
		"Lock":    func() error { _, err := l.Lock(bg); return err },
	} {
		locktest.Eventually(t, what+" says that two nodes are one server", func() bool {
			err := call()
			if err == nil {
				t.Fatalf("%s succeeds with two votes of one server", what)
			}
			return errors.Is(err, rlock.ErrInvalidArgument) && strings.Contains(err.Error(), "node 1 ("+addrs[0]+") and node 2 ("+twice[1]+") are one server, with run_id ")
		})
	}
	// No vote was counted, and none is left.
	for _, s := range servers[:2] {
		if keys := s.Client().Keys(bg, "*stock*:red").Val(); len(keys) > 0 {
			t.Errorf("%s is left on %s", keys, s.Addr())
		}
	}
	unlock(lockPatiently(t, stockLock(t, clientsAt(t, addrs), true)))
}
