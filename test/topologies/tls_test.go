package topologies

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/loopback"
	"github.com/go-rlock/rlock/internal/redistest"
)

// terminator passes on to addr what comes by TLS. It returns its address, and what a client has to trust.
func terminator(t *testing.T, addr string) (string, *tls.Config) {
	t.Helper()
	lender := httptest.NewTLSServer(nil) // of its certificate, for 127.0.0.1
	lender.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(lender.Certificate())
	plain, err := loopback.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ln := tls.NewListener(plain, &tls.Config{Certificates: lender.TLS.Certificates})
	var copies sync.WaitGroup
	t.Cleanup(copies.Wait) // once the clients, made later, have closed their connections
	t.Cleanup(func() { _ = ln.Close() })
	copies.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				_ = near.Close()
				continue
			}
			both := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = near.Close()
				_ = far.Close()
			}
			copies.Go(func() { both(far, near) })
			copies.Go(func() { both(near, far) })
		}
	})
	return plain.Addr().String(), &tls.Config{RootCAs: trusted, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

// However a client reaches a server, and with either protocol of Redis, a lock is held, and the waiter of another process is
// woken by a message: the subscribed connection goes the same way.
func TestLocksByEachTransportAndProtocol(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	for transport, connect := range map[string]func(t *testing.T) redis.Options{
		"TCP": func(t *testing.T) redis.Options { return redis.Options{Addr: redistest.Start(t).Addr()} },
		"TLS": func(t *testing.T) redis.Options {
			addr, trust := terminator(t, redistest.Start(t).Addr())
			return redis.Options{Addr: addr, TLSConfig: trust}
		},
		"unix socket": func(t *testing.T) redis.Options {
			// Not t.TempDir, whose paths may be longer than the 107 bytes of a socket's.
			dir, err := os.MkdirTemp("", "rlock-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			path := filepath.Join(dir, "s")
			redistest.Start(t, "--unixsocket", path)
			return redis.Options{Network: "unix", Addr: path}
		},
	} {
		for _, protocol := range []int{2, 3} {
			t.Run(fmt.Sprintf("%s, RESP%d", transport, protocol), func(t *testing.T) {
				t.Parallel()
				o := connect(t)
				o.Protocol = protocol
				wakesByMessage(t, o)
			})
		}
	}
}

// wakesByMessage has a lock released by one process, and acquired by another that waits.
func wakesByMessage(t *testing.T, o redis.Options) {
	t.Helper()
	join := func() *locktest.Member {
		rdb := redis.NewClient(&o)
		t.Cleanup(func() { _ = rdb.Close() })
		return locktest.Join(t, rdb)
	}
	holder, waiter := join(), join()
	held := locktest.MustLock(t, holder.NewLock("order"))
	next := waiter.LineParked(t, "order")
	began := time.Now()
	locktest.MustUnlock(t, held)
	lease, _ := next.WokenByMessage(t, began)
	locktest.MustUnlock(t, lease)
}
