package idempotency_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/adapters/idempotency"
)

// slow is the body of an upload that stops before its last byte.
type slow struct {
	left    int
	stopped chan<- struct{}
	goOn    <-chan struct{}
}

func (s *slow) Read(b []byte) (int, error) {
	if s.left == 0 {
		s.stopped <- struct{}{}
		<-s.goOn
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(b), s.left, 4000)
	s.left -= n
	return n, nil
}

func (*slow) Close() error { return nil }

// heap is what the process has in memory.
func heap() int64 {
	for range 2 { // what pools have takes two
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Whatever is uploaded slowly, the memory for it is bounded, for one principal and for all. It measures the process, so
// nothing runs beside it.
func TestTheMemoryOfSlowUploadsIsBounded(t *testing.T) {
	const uploads, mib, slack = 64, 1 << 20, 2 << 20
	reports := make(chan error, 1000)
	h := middleware(t, inMemory(t), "shop", idempotency.WithReport(func(_ *http.Request, err error) { reports <- err }))(says("order"))
	for _, of := range []struct {
		what              string
		users             int
		length, announced int
		atLeast, atMost   int // of 1 MiB
	}{
		{"of one principal", 1, mib - 2, mib - 1, 8, 8},
		{"of eight", 8, mib - 2, mib - 1, 32, 32},
		{"without a length", 8, mib - 2, -1, 0, 32}, // in the middle some may be in the way of others, which end first
		{"that are announced only", 8, 0, mib - 1, 32, 32},
		{"of eight, again", 8, mib - 2, mib - 1, 32, 32},
	} {
		before := heap()
		stopped, goOn := make(chan struct{}, uploads), make(chan struct{})
		answered := make(chan *httptest.ResponseRecorder, uploads)
		for i := range uploads {
			go func() {
				answered <- handle(h, func(r *http.Request) {
					r.Body, r.ContentLength = &slow{of.length, stopped, goOn}, int64(of.announced)
				}, "POST", "/", "", fmt.Sprint("Idempotency-Key: ", i), fmt.Sprint("User: ", i%of.users))
			}()
		}
		admitted := 0
		for range uploads {
			select {
			case <-stopped:
				admitted++
			case w := <-answered:
				reply{w.Code, w.Header(), w.Body.String()}.want(t, http.StatusServiceUnavailable)
				if err := <-reports; w.Header().Get("Retry-After") == "" || !strings.Contains(err.Error(), "WithMaxBodies") {
					t.Error(w.Header(), err)
				}
			}
		}
		inHeap := heap()
		held := inHeap - before
		t.Logf("%d uploads %s: %d go on, %d bytes are in memory", uploads, of.what, admitted, held)
		if admitted < of.atLeast || admitted > of.atMost || held > int64(of.atMost)*mib+slack {
			t.Errorf("%s: %d uploads go on, %d bytes are in memory; want %d", of.what, admitted, held, of.atMost)
		}
		if of.users == 1 { // the others are served
			if w := handle(h, nil, "POST", "/", strings.Repeat("x", mib), "User: other"); w.Code != 200 {
				t.Error(w.Code, w.Body)
			}
			if w := handle(h, nil, "POST", "/", "x", "User: 0"); w.Code != 503 {
				t.Error(w.Code, w.Body)
			}
			<-reports
		}
		close(goOn)
		for range admitted {
			if w := <-answered; w.Code != http.StatusBadRequest {
				t.Error(w.Code, w.Body)
			}
		}
		// Earlier tests may have left something that is free by now: it is in neither number.
		if given := inHeap - min(before, heap()); given < int64(admitted*of.length)-slack {
			t.Errorf("%s: %d uploads go on, and take %d bytes: they are not what was measured", of.what, admitted, given)
		}
	}
}

// A body of exactly the longest length is read, whatever is announced of it, and its memory is given back also if reading it
// panics.
func TestBodiesAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	h := middleware(t, inMemory(t), "shop", idempotency.WithMaxRequest(5000), idempotency.WithMaxBodies(6000))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	key := 0
	for _, length := range []int{0, 1, 511, 512, 513, 4999, 5000, 5001} {
		for _, announced := range []int64{-1, int64(length), 1} {
			text := strings.Repeat("x", length)
			key++
			w := handle(h, func(r *http.Request) { r.ContentLength = announced }, "POST", "/", text, fmt.Sprint("Idempotency-Key: ", key))
			want := http.StatusOK
			switch {
			case length > 5000:
				want = http.StatusRequestEntityTooLarge
			case length == 0 && announced != 0:
				want = http.StatusInternalServerError // somebody has read it
			}
			if w.Code != want || want == 200 && w.Body.String() != text {
				t.Errorf("%d of %d bytes: %d, %d bytes", length, announced, w.Code, w.Body.Len())
			}
		}
	}
	for range 10 {
		func() {
			defer func() {
				if recover() != "no more" {
					t.Error("the panic was not passed on")
				}
			}()
			handle(h, func(r *http.Request) { r.Body = io.NopCloser(io.MultiReader(strings.NewReader("some"), panics{})) }, "POST", "/", "")
		}()
	}
	if w := handle(h, nil, "POST", "/", strings.Repeat("x", 5000)); w.Code != 200 {
		t.Error(w.Code, w.Body)
	}
}

type panics struct{}

func (panics) Read([]byte) (int, error) { panic("no more") }

// Nothing of a body is read, and nothing is sent to Redis, before somebody has said who sends it.
func TestARequestWithoutAPrincipalIsRefused(t *testing.T) {
	t.Parallel()
	away := errors.New("the sessions are away")
	for _, of := range []struct {
		err            error
		status         int
		header, detail string
		reported       bool
	}{
		{away, 401, "", "", true},
		{&idempotency.Refusal{}, 401, "", "", false},
		{&idempotency.Refusal{Status: 200, Header: http.Header{"Www-Authenticate": {"Basic"}}}, 401, "Basic", "", false},
		{fmt.Errorf("of the session: %w", &idempotency.Refusal{Status: 403, Detail: "Your account is closed."}), 403, "", "Your account is closed.", false},
		{&idempotency.Refusal{Status: 599}, 599, "", "", false},
		{&idempotency.Refusal{Status: 600}, 401, "", "", false},
	} {
		in := inMemory(t)
		reports := make(chan error, 10)
		m, err := idempotency.New(in.client, in.rdb, "shop", func(*http.Request) (string, error) { return "", of.err },
			idempotency.WithFailOpen(), idempotency.WithReport(func(_ *http.Request, err error) { reports <- err }))
		if err != nil {
			t.Fatal(err)
		}
		before := in.rdb.Keys(t.Context(), "*").Val()
		w := handle(m(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was executed") })),
			func(r *http.Request) { r.Body = unread{t} }, "POST", "/", "")
		reply{w.Code, w.Header(), w.Body.String()}.want(t, of.status)
		if w.Header().Get("WWW-Authenticate") != of.header || strings.Contains(w.Body.String(), "away") || !strings.Contains(w.Body.String(), of.detail) {
			t.Errorf("%v: %v %s", of.err, w.Header(), w.Body)
		}
		if after := in.rdb.Keys(t.Context(), "*").Val(); len(after) != len(before) {
			t.Errorf("%v: Redis has %q, then %q", of.err, before, after)
		}
		if of.reported != (len(reports) == 1) {
			t.Errorf("%v: %d reports", of.err, len(reports))
		}
	}
}

type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) { u.t.Error("the body is read"); return 0, io.EOF }
func (unread) Close() error               { return nil }
