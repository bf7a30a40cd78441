package fence_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/fence"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlocktest"
)

// bucket is a server with the conditional writes of S3.
type bucket struct {
	mu       sync.Mutex // guards the rest
	objects  map[string]object
	versions int
}

type object struct {
	etag, token string
	body        []byte
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	o, found := b.objects[r.URL.Path]
	switch r.Method {
	case http.MethodHead:
		if !found {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", o.etag)
		w.Header().Set(fence.TokenMetadata, o.token)
	case http.MethodPut:
		if r.Header.Get("If-None-Match") == "*" && found || r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != o.etag {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		b.versions++
		b.objects[r.URL.Path] = object{etag: `"` + strconv.Itoa(b.versions) + `"`, token: r.Header.Get(fence.TokenMetadata), body: body}
	}
}

func (b *bucket) body(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.objects["/"+key].body)
}

func startBucket(t *testing.T) (*bucket, fence.HTTPObjects) {
	b := &bucket{objects: map[string]object{}}
	srv := httptest.NewServer(b)
	t.Cleanup(srv.Close)
	return b, fence.HTTPObjects{Client: srv.Client(), Base: srv.URL + "/"}
}

func TestPutRefusesALateHolder(t *testing.T) {
	t.Parallel()
	b, store := startBucket(t)
	late, next := hold(t, rlocktest.New(t), "a")
	put := func(lease *rlock.Lease, body string) error {
		return fence.Put(t.Context(), store, lease, "report", []byte(body))
	}
	for _, err := range []error{put(late, "1"), put(next, "2"), put(next, "3")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := put(late, "4"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a late write: %v", err)
	}
	if got := b.body("report"); got != "3" {
		t.Errorf("the object is %q", got)
	}
}

// halting is a store whose first HEAD is answered, and seen only after somebody else has written.
type halting struct {
	fence.Objects
	once  *sync.Once
	write func()
}

func (h halting) Head(ctx context.Context, key string) (string, int64, error) {
	etag, token, err := h.Objects.Head(ctx, key)
	h.once.Do(h.write)
	return etag, token, err
}

func TestPutThatIsStoppedBetweenLookAndWriteIsRefused(t *testing.T) {
	t.Parallel()
	for _, existing := range []bool{false, true} {
		b, store := startBucket(t)
		late, next := hold(t, rlocktest.New(t), "a")
		if existing {
			if err := fence.Put(t.Context(), store, late, "report", nil); err != nil {
				t.Fatal(err)
			}
		}
		slow := halting{store, new(sync.Once), func() {
			if err := fence.Put(t.Context(), store, next, "report", []byte("next")); err != nil {
				t.Error(err)
			}
		}}
		if err := fence.Put(t.Context(), slow, late, "report", []byte("late")); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a late write: %v", err)
		}
		if got := b.body("report"); got != "next" {
			t.Errorf("the object is %q", got)
		}
	}
}

func TestPutRefusesInvalidArgumentsAndTellsFailures(t *testing.T) {
	t.Parallel()
	lease := locktest.MustLock(t, rlocktest.New(t).Client().NewLock("a"))
	_, store := startBucket(t)
	if err := fence.Put(t.Context(), nil, lease, "k", nil); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	if err := fence.Put(t.Context(), store, lease, "", nil); !errors.Is(err, rlock.ErrInvalidArgument) {
		t.Error(err)
	}
	for _, answer := range []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		func(http.ResponseWriter, *http.Request) {}, // no ETag
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set(fence.TokenMetadata, "x")
		},
		func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"1"`)
			if r.Method == http.MethodPut {
				w.WriteHeader(http.StatusForbidden)
			}
		},
	} {
		srv := httptest.NewServer(answer)
		err := fence.Put(t.Context(), fence.HTTPObjects{Client: srv.Client(), Base: srv.URL + "/"}, lease, "k", nil)
		if err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrChanged) {
			t.Errorf("a failing store: %v", err)
		}
		srv.Close()
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := fence.Put(t.Context(), store, lease, "k", nil); !errors.Is(err, rlock.ErrUnlocked) {
		t.Errorf("after the unlock: %v", err)
	}
}

// A key is the name of an object, whatever is in it: never a query, another object or another host.
func TestAKeyIsOneObject(t *testing.T) {
	t.Parallel()
	var sent []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Host+r.RequestURI)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	for _, of := range []struct{ base, key, want string }{
		{"/", "a/b c", "/a/b%20c"},
		{"/", "k?acl", "/k%3Facl"},
		{"/", "k#part", "/k%23part"},
		{"/", "a+b", "/a%2Bb"}, // a plus is a space to S3
		{"/", "%2e%2e/k", "/%252e%252e/k"},
		{"/", "ä:&=@\n", "/%C3%A4%3A%26%3D%40%0A"},
		{"/", "/a//b/", "//a//b/"},
		{"/", "...", "/..."},
		{"/bucket/x-", "a", "/bucket/x-a"},
		{"", "@127.0.0.2/k", "/%40127.0.0.2/k"},
		{"", "0/k", "/0/k"}, // and no port
	} {
		sent = nil
		_, _, err := fence.HTTPObjects{Client: srv.Client(), Base: srv.URL + of.base}.Head(t.Context(), of.key)
		if err != nil || len(sent) != 1 || sent[0] != host+of.want {
			t.Errorf("%q%q: %q, %v; want %s", of.base, of.key, sent, err, of.want)
		}
	}
	sent = nil
	for _, of := range []struct{ base, key string }{
		{srv.URL + "/", ".."}, {srv.URL + "/a/", "../b"}, {srv.URL + "/", "a/./b"}, {srv.URL + "/", "a/.."}, {srv.URL + "/.", "./a"},
		{srv.URL + "/?a=", "k"}, {srv.URL + "/#", "k"}, {"", "k"}, {"/a/", "k"}, {"%", "k"},
	} {
		store := fence.HTTPObjects{Client: srv.Client(), Base: of.base}
		_, _, err := store.Head(t.Context(), of.key)
		if put := store.PutIf(t.Context(), of.key, "", 1, nil); !errors.Is(err, rlock.ErrInvalidArgument) || !errors.Is(put, rlock.ErrInvalidArgument) {
			t.Errorf("%v: %v, %v", of, err, put)
		}
	}
	if len(sent) > 0 {
		t.Errorf("sent %q", sent)
	}
}
