//go:build unix

package rlockcertmagic_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/go-rlock/rlock"
	rlockcertmagic "github.com/go-rlock/rlock/adapters/certmagic"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

func newStorage(t testing.TB, client *rlock.Client, rdb redis.UniversalClient) *rlockcertmagic.Storage {
	t.Helper()
	s, err := rlockcertmagic.New(client, rdb, "certmagic")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// eachStorage runs a scenario on a storage in a server, in a cluster and in memory, and on certmagic's own in files,
// which shows what certmagic expects.
func eachStorage(t *testing.T, scenario func(t *testing.T, s certmagic.Storage)) {
	for name, open := range map[string]func(t *testing.T) certmagic.Storage{
		"server": func(t *testing.T) certmagic.Storage {
			srv := redistest.Start(t)
			return newStorage(t, locktest.NewClient(t, srv.Client()), srv.Client())
		},
		"cluster": func(t *testing.T) certmagic.Storage {
			c := redistest.StartCluster(t, 3, 0)
			return newStorage(t, locktest.NewClient(t, c.Client()), c.Client())
		},
		"memory": func(t *testing.T) certmagic.Storage {
			srv := rlocktest.New(t)
			return newStorage(t, srv.Client(), srv.Redis())
		},
		"files": func(t *testing.T) certmagic.Storage { return &certmagic.FileStorage{Path: t.TempDir()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, open(t))
		})
	}
}

func TestStorage(t *testing.T) {
	t.Parallel()
	eachStorage(t, func(t *testing.T, s certmagic.Storage) {
		ctx := t.Context()
		for _, err := range []error{func() error { _, err := s.Load(ctx, "a"); return err }(), func() error { _, err := s.Stat(ctx, "a"); return err }(),
			func() error { _, err := s.List(ctx, "a", true); return err }()} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("in an empty storage: %v", err)
			}
		}
		if s.Exists(ctx, "a") {
			t.Error("a key exists")
		}
		if err := s.Delete(ctx, "a"); err != nil {
			t.Errorf("a key that is not there is deleted: %v", err)
		}
		for key, value := range map[string]string{"a/b/c": "1", "a/b/d/e": "22", "a/bc": "", "a/b0": "x", "b": "\x00\xff"} {
			if err := s.Store(ctx, key, []byte("before")); err != nil {
				t.Fatal(err)
			}
			if err := s.Store(ctx, key, []byte(value)); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Load(ctx, key); err != nil || string(got) != value {
				t.Errorf("%s: %q, %v", key, got, err)
			}
			info, err := s.Stat(ctx, key)
			if err != nil || info.Key != key || info.Size != int64(len(value)) || !info.IsTerminal || time.Since(info.Modified).Abs() > time.Hour {
				t.Errorf("%s: %+v, %v", key, info, err)
			}
		}
		for _, directory := range []string{"a", "a/b", "a/b/d"} {
			info, err := s.Stat(ctx, directory)
			if err != nil || info.Key != directory || info.IsTerminal || !s.Exists(ctx, directory) {
				t.Errorf("%s: %+v, %v", directory, info, err)
			}
			if _, err := s.Load(ctx, directory); err == nil {
				t.Errorf("%s was loaded", directory)
			}
		}
		list := func(directory string, recursive bool, want ...string) {
			t.Helper()
			got, err := s.List(ctx, directory, recursive)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %q, %v; want %q", directory, got, err, want)
			}
		}
		list("a", false, "a/b", "a/b0", "a/bc")
		list("a", true, "a/b", "a/b/c", "a/b/d", "a/b/d/e", "a/b0", "a/bc")
		list("a/b", false, "a/b/c", "a/b/d")
		list("", false, "a", "b")
		if err := s.Delete(ctx, "a/b"); err != nil {
			t.Fatal(err)
		}
		list("a", true, "a/b0", "a/bc")
		if err := s.Delete(ctx, "b"); err != nil || s.Exists(ctx, "b") {
			t.Errorf("after Delete: %v", err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, own := s.(*rlockcertmagic.Storage); own {
			if err := s.Store(ended, "a", nil); !errors.Is(err, context.Canceled) {
				t.Errorf("Store with an ended context: %v", err)
			}
			if err := s.Store(ctx, "/", nil); !errors.Is(err, rlock.ErrInvalidArgument) {
				t.Errorf("Store of the root: %v", err)
			}
		}
	})
}

func TestLocks(t *testing.T) {
	t.Parallel()
	eachStorage(t, func(t *testing.T, s certmagic.Storage) {
		if _, own := s.(*rlockcertmagic.Storage); !own {
			t.Skip("its goroutines outlast the test")
		}
		for _, name := range []string{"issue_cert_*.example.com", "a{b", "x", strings.Repeat("long", 1000), "\x00"} {
			if err := s.Lock(t.Context(), name); err != nil {
				t.Fatalf("%.20q: %v", name, err)
			}
			if ok, err := s.(certmagic.TryLocker).TryLock(t.Context(), name); ok || err != nil {
				t.Errorf("%.20q: a second TryLock: %v, %v", name, ok, err)
			}
			waited := make(chan error, 1)
			go func() { waited <- s.Lock(t.Context(), name) }()
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Unlock(ended, name); err != nil { // the lock is free although the context has ended
				t.Errorf("%.20q: %v", name, err)
			}
			if err := <-waited; err != nil {
				t.Errorf("%.20q: %v", name, err)
			}
			if err := s.Unlock(t.Context(), name); err != nil {
				t.Errorf("%.20q: %v", name, err)
			}
			if ok, err := s.(certmagic.TryLocker).TryLock(t.Context(), name); !ok || err != nil {
				t.Errorf("%.20q: TryLock: %v, %v", name, ok, err)
			}
			if err := s.Unlock(t.Context(), name); err != nil {
				t.Errorf("%.20q: %v", name, err)
			}
		}
		// Goroutines of one process exclude each other.
		var running, most atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := s.Lock(t.Context(), "n"); err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Millisecond)
				running.Add(-1)
				if err := s.Unlock(t.Context(), "n"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := most.Load(); n != 1 {
			t.Errorf("%d had the lock at once", n)
		}
	})
}

func TestALossIsReportedAndItsWritesAreRefused(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	const name, key = "issue_cert_*.Example.com", "certificates/ca/wildcard_.example.com/wildcard_.example.com.crt"
	late, next := newStorage(t, srv.NewClient(), srv.Redis()), newStorage(t, srv.NewClient(), srv.Redis())
	ctx := t.Context()
	if err := errors.Join(late.Lock(ctx, name), late.RenewLockLease(ctx, name, 6*time.Hour), late.Store(ctx, key, []byte("late"))); err != nil {
		t.Fatal(err)
	}
	if locks := srv.Client().Locks(ctx, "*"); locks != nil {
		for found, err := range locks {
			if err != nil || found.State.TTL > rlock.DefaultWatchdogLease {
				t.Errorf("the lock is held for %v, %v, though its process may die", found.State.TTL, err)
			}
		}
	}
	srv.Remove("certmagic:lock:issue_cert_%2A.Example.com")
	if err := errors.Join(next.Lock(ctx, name), next.Store(ctx, key, []byte("next"))); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Store": late.Store(ctx, key, []byte("late")), "Delete": late.Delete(ctx, "certificates/ca/wildcard_.example.com"),
		"RenewLockLease": late.RenewLockLease(ctx, name, time.Hour),
	} {
		if !errors.Is(err, rlock.ErrLeaseLost) {
			t.Errorf("%s after a loss: %v", what, err)
		}
	}
	// Another certificate has nothing to do with it.
	if err := late.Store(ctx, "certificates/ca/other/other.crt", nil); err != nil {
		t.Error(err)
	}
	if err := late.Unlock(ctx, name); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("Unlock: %v", err)
	}
	if err := late.Unlock(ctx, name); !errors.Is(err, rlock.ErrNotHeld) {
		t.Errorf("a second Unlock: %v", err)
	}
	if err := late.RenewLockLease(ctx, name, time.Hour); !errors.Is(err, rlock.ErrNotHeld) {
		t.Errorf("RenewLockLease without a lock: %v", err)
	}
	if value, err := next.Load(ctx, key); string(value) != "next" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	if err := next.Unlock(ctx, name); err != nil {
		t.Error(err)
	}
}

// passing stops the first write that stores something, on its way to Redis.
type passing struct {
	once sync.Once
	stop func()
}

func (p *passing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *passing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (p *passing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if slices.Contains(cmd.Args(), any("store")) {
			p.once.Do(p.stop)
		}
		return next(ctx, cmd)
	}
}

// The write has left the process when the lease is lost: only Redis can refuse it.
func TestAWriteThatIsOnItsWayIsRefused(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	const name, key = "issue_cert_example.com", "certificates/ca/example.com/example.com.key"
	next := newStorage(t, srv.NewClient(), srv.Redis())
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	defer rdb.Close()
	ctx := t.Context()
	rdb.AddHook(&passing{stop: func() {
		srv.Remove("certmagic:lock:" + name)
		if err := errors.Join(next.Lock(ctx, name), next.Store(ctx, key, []byte("next"))); err != nil {
			t.Error(err)
		}
	}})
	late := newStorage(t, srv.NewClient(), rdb)
	if err := late.Lock(ctx, name); err != nil {
		t.Fatal(err)
	}
	if err := late.Store(ctx, key, []byte("late")); !errors.Is(err, rlockcertmagic.ErrStale) {
		t.Errorf("a late write: %v", err)
	}
	if value, err := next.Load(ctx, key); string(value) != "next" || err != nil {
		t.Errorf("%q, %v", value, err)
	}
	_ = late.Unlock(ctx, name)
	if err := next.Unlock(ctx, name); err != nil {
		t.Error(err)
	}
}

// A second goroutine gets the lock after a loss: the first Unlock is not that of the second hold.
func TestUnlockAfterALossDoesNotFreeTheNextHold(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	s := newStorage(t, srv.Client(), srv.Redis())
	if err := s.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	srv.Remove("certmagic:lock:a")
	if err := s.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	lock := srv.NewClient().NewLock("certmagic:lock:a")
	if err := s.Unlock(t.Context(), "a"); !errors.Is(err, rlock.ErrLeaseLost) {
		t.Errorf("the first Unlock: %v", err)
	}
	locktest.MustBeHeld(t, lock)
	if err := s.Unlock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	locktest.MustBeFree(t, lock)
}

// issuer is a CA in memory.
type issuer struct{ before func() }

func (issuer) IssuerKey() string { return "ca" }

func (i issuer) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	i.before()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, request.PublicKey, crypto.Signer(key))
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"obtain": childObtain})
}

// childObtain obtains a certificate, as certmagic does it.
func childObtain(t *testing.T, parent *locktest.Parent, addr string, _ []string) {
	client, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(time.Second))
	storage := newStorage(t, client, rdb)
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{Logger: zap.NewNop(),
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil }})
	config = certmagic.New(cache, certmagic.Config{Storage: storage, Logger: zap.NewNop(), Issuers: []certmagic.Issuer{issuer{func() {
		parent.Report("issues")
		parent.Await("go on")
	}}}})
	if err := config.ObtainCertSync(context.Background(), "example.com"); err != nil {
		t.Fatal(err)
	}
	parent.Report("has it")
	cache.Stop()
}

func TestHolderIsKilledWhileItObtains(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	first := locktest.StartChild(t, "obtain", srv.Addr())
	first.Report("issues")
	second := locktest.StartChild(t, "obtain", srv.Addr())
	lock := locktest.NewClient(t, srv.Client()).NewLock("certmagic:lock:issue_cert_example.com")
	locktest.Eventually(t, "the second waits", func() bool {
		state, err := lock.State(t.Context())
		return err == nil && state.Waiters > 0
	})
	first.Kill()
	second.Report("issues") // when the lease is over
	second.Order("go on")
	second.Report("has")
	second.Finish()
	// Whoever comes later finds the certificate.
	third := locktest.StartChild(t, "obtain", srv.Addr())
	third.Report("has")
	third.Finish()
	locktest.MustBeFree(t, lock)
	s := newStorage(t, locktest.NewClient(t, srv.Client()), srv.Client())
	for _, what := range []string{"crt", "key", "json"} {
		if !s.Exists(t.Context(), "certificates/ca/example.com/example.com."+what) {
			t.Errorf("there is no %s", what)
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	for what, of := range map[string]func() (*rlockcertmagic.Storage, error){
		"no client": func() (*rlockcertmagic.Storage, error) { return rlockcertmagic.New(nil, srv.Redis(), "a") },
		"no Redis":  func() (*rlockcertmagic.Storage, error) { return rlockcertmagic.New(srv.Client(), nil, "a") },
		"no prefix": func() (*rlockcertmagic.Storage, error) { return rlockcertmagic.New(srv.Client(), srv.Redis(), "") },
		"a brace":   func() (*rlockcertmagic.Storage, error) { return rlockcertmagic.New(srv.Client(), srv.Redis(), "{a") },
	} {
		if _, err := of(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := newStorage(t, srv.Client(), srv.Redis())
	if err := s.RenewLockLease(t.Context(), "a", 0); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if fmt.Sprint(s) == "" {
		t.Error("it has no name")
	}
}

// A name that is gone leaves nothing behind, and the token of one that is there stays, however old.
func TestTokensOfNamesThatAreGoneGo(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	s, ctx := newStorage(t, srv.Client(), srv.Redis()), t.Context()
	raise := func(domain string, keys ...string) {
		t.Helper()
		err := s.Lock(ctx, "issue_cert_"+domain)
		for _, key := range keys {
			err = errors.Join(err, s.Store(ctx, key, []byte("x")))
		}
		if err := errors.Join(err, s.Unlock(ctx, "issue_cert_"+domain)); err != nil {
			t.Fatal(err)
		}
	}
	raise("there", "certificates/b/there/there.key", "certificates/a/other/other.key")
	raise("*.there", "certificates/a/wildcard_.there/wildcard_.there.key")
	raise("gone", "certificates/b/gone/gone.key")
	raise("ther") // none, and a part of the name of another
	for n := range 200 {
		raise(fmt.Sprint("never", n))
	}
	if err := s.Delete(ctx, "certificates/b/gone"); err != nil {
		t.Fatal(err)
	}
	tokens := func() []string {
		names := srv.Redis().HKeys(ctx, "{certmagic}:tokens").Val()
		slices.Sort(names)
		return names
	}
	srv.Advance(6 * 24 * time.Hour)
	raise("new")
	if n := len(tokens()); n != 205 {
		t.Errorf("%d tokens after six days; want all of 205: somebody may be late", n)
	}
	srv.Advance(2 * 24 * time.Hour)
	for range 30 { // some go with each
		raise("new")
	}
	if got, want := tokens(), []string{"issue_cert_*.there", "issue_cert_new", "issue_cert_there"}; !slices.Equal(got, want) {
		t.Errorf("%d tokens: %q; want %q", len(got), got, want)
	}
	if n := srv.Redis().ZCard(ctx, "{certmagic}:raised").Val(); n != 3 {
		t.Errorf("%d notes; want 3", n)
	}
}
