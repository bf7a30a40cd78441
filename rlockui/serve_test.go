package rlockui_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockui"
)

func (s *site) write(action, lock, hold string, header ...string) (*http.Response, string) {
	s.t.Helper()
	body, err := json.Marshal(map[string]string{"action": action, "lock": lock, "hold": hold})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.ask("POST", prefix+"write", string(body), append([]string{"Content-Type", "application/json"}, header...)...)
}

func TestWorksUnderAnyPrefix(t *testing.T) {
	t.Parallel()
	pages := pagesOf(t, locktest.OnMiniredis(t).NewClient(t), rlockui.Options{Interval: interval})
	app := http.NewServeMux()
	app.Handle("/a/b/", pages)
	app.Handle("/stripped/", http.StripPrefix("/stripped", pages))
	app.Handle("/bare", http.StripPrefix("/bare", pages))
	app.Handle("/b/ä", http.StripPrefix("/b/ä", pages))
	app.Handle("/bare/", http.StripPrefix("/bare/", pages))
	backend := &site{t: t, pages: pages}
	backend.serve(app)
	to, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	// A proxy in front takes its own prefix off, and rewrites no answer.
	front := httptest.NewServer(http.StripPrefix("/outer", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}))
	t.Cleanup(front.Close)
	for _, base := range []string{backend.URL + "/a/b", backend.URL + "/stripped", backend.URL + "/bare", front.URL + "/outer/a/b", front.URL + "/outer/stripped"} {
		s := &site{t: t, Server: &httptest.Server{URL: base}}
		s.Server.Config = &http.Server{}
		for name, kind := range map[string]string{
			"/": "text/html; charset=utf-8", "/rlock.js": "text/javascript; charset=utf-8", "/rlock.css": "text/css; charset=utf-8", "/snapshot.json": "application/json",
		} {
			answer, err := http.Get(base + name)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != kind {
				t.Errorf("%s%s: %s, %s", base, name, answer.Status, answer.Header.Get("Content-Type"))
			}
			if p := answer.Header.Get("Content-Security-Policy"); !strings.Contains(p, "script-src 'self'") || strings.Contains(p, "unsafe") {
				t.Errorf("policy: %q", p)
			}
		}
	}
	for _, bare := range []string{backend.URL + "/bare", backend.URL + "/a/b/c", backend.URL + "/b/%C3%A4"} {
		r, err := http.NewRequest("GET", bare, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "text/html")
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if want := "./" + path.Base(bare) + "/"; answer.Header.Get("Location") != want {
			t.Errorf("%s: %s to %q, not %q", bare, answer.Status, answer.Header.Get("Location"), want)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// deadlines keeps the latest deadline of an answer.
type deadlines struct {
	http.ResponseWriter
	latest *atomic.Pointer[time.Time]
}

func (d deadlines) Unwrap() http.ResponseWriter { return d.ResponseWriter }

func (d deadlines) SetWriteDeadline(at time.Time) error {
	d.latest.Store(&at)
	return http.NewResponseController(d.ResponseWriter).SetWriteDeadline(at)
}

// HTTP/2 resets a stream whose deadline passes, also if nothing is being written.
func TestNoDeadlineRunsBetweenTwoEvents(t *testing.T) {
	t.Parallel()
	var latest atomic.Pointer[time.Time]
	s := &site{t: t, pages: pagesOf(t, locktest.OnMiniredis(t).NewClient(t), rlockui.Options{Interval: time.Hour})}
	s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.pages.ServeHTTP(deadlines{w, &latest}, r) }))
	st := s.stream("")
	st.next(t)
	locktest.Eventually(t, "the deadline is taken off", func() bool { return latest.Load().IsZero() })
}

// opaque is the ResponseWriter of a middleware that hides what the server's can do.
type opaque struct{ http.ResponseWriter }

func TestAnswerThatCannotBeStreamedIsAnError(t *testing.T) {
	t.Parallel()
	s := &site{t: t, pages: pagesOf(t, locktest.OnMiniredis(t).NewClient(t), rlockui.Options{})}
	s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.pages.ServeHTTP(opaque{w}, r) }))
	answer, text := s.ask("GET", prefix+"events", "")
	if answer.StatusCode != http.StatusInternalServerError || answer.Header.Get("Content-Type") != "application/json" || !strings.Contains(text, "Flush") {
		t.Errorf("%s, %s: %q", answer.Status, answer.Header.Get("Content-Type"), text)
	}
}

func TestWritesAfterCloseAreRefused(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
	l := b.NewClient(t).NewLock("mine")
	lease := locktest.MustLock(t, l)
	r := s.held("mine")
	_ = s.pages.Close()
	if answer, text := s.write(rlockui.ForceUnlock, r.ID, r.Holders[0].Ref); answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%s: %s", answer.Status, text)
	}
	locktest.MustBeHeld(t, l)
	locktest.MustUnlock(t, lease)
}

func TestOtherAddressesAndMethods(t *testing.T) {
	t.Parallel()
	s := open(t, locktest.OnMiniredis(t), rlockui.Options{Hosts: []string{"locks.example.com"}})
	for _, c := range []struct {
		method, path string
		header       []string
		status       int
	}{
		{"GET", "nothing", nil, http.StatusNotFound},
		{"GET", "static/rlock.go", nil, http.StatusNotFound},
		{"POST", "", nil, http.StatusMethodNotAllowed},
		{"DELETE", "snapshot.json", nil, http.StatusMethodNotAllowed},
		{"GET", "write", nil, http.StatusMethodNotAllowed},
		{"GET", "", []string{"Host", "localhost:1234"}, http.StatusOK},
		{"GET", "", []string{"Host", "LOCALHOST"}, http.StatusOK},
		{"GET", "", []string{"Host", "[::1]:80"}, http.StatusOK},
		{"GET", "", []string{"Host", "locks.example.com"}, http.StatusOK},
		{"GET", "", []string{"Host", "evil.example"}, http.StatusMisdirectedRequest},
		{"GET", "snapshot.json", []string{"Host", "evil.example:80"}, http.StatusMisdirectedRequest},
		{"GET", "", []string{"Host", "127.0.0.1.evil.example"}, http.StatusMisdirectedRequest},
		{"GET", "snapshot.json", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"GET", "events", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
	} {
		answer, text := s.ask(c.method, prefix+c.path, "", c.header...)
		if answer.StatusCode != c.status {
			t.Errorf("%s %s %v: %s, want %d: %.200s", c.method, c.path, c.header, answer.Status, c.status, text)
		}
	}
}

func TestWritesAreRefusedByDefault(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	l := b.NewClient(t).NewLock("mine")
	lease := locktest.MustLock(t, l)
	r := s.held("mine")
	answer, text := s.write(rlockui.ForceUnlock, r.ID, r.Holders[0].Ref)
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("%s: %s", answer.Status, text)
	}
	locktest.MustBeHeld(t, l)
	locktest.MustUnlock(t, lease)
}

func TestWritesThatAreAllowed(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	var asked []rlockui.Write
	s := open(t, b, rlockui.Options{Allow: func(r *http.Request, w rlockui.Write) bool {
		asked = append(asked, w) // the requests of the test come one after the other
		return r.Header.Get("X-User") == "root"
	}})
	l := b.NewClient(t).NewLock("mine")
	lease := locktest.MustLock(t, l)
	r := s.held("mine")
	ref := r.Holders[0].Ref
	root := []string{"X-User", "root"}
	for _, c := range []struct {
		what               string
		action, lock, hold string
		header             []string
		status             int
	}{
		{"another user", rlockui.ForceUnlock, r.ID, ref, nil, http.StatusForbidden},
		{"another site", rlockui.ForceUnlock, r.ID, ref, append([]string{"Sec-Fetch-Site", "cross-site"}, root...), http.StatusForbidden},
		{"a sibling site", rlockui.ForceUnlock, r.ID, ref, append([]string{"Sec-Fetch-Site", "same-site"}, root...), http.StatusForbidden},
		{"an old browser at another site", rlockui.ForceUnlock, r.ID, ref, append([]string{"Origin", "http://evil.example"}, root...), http.StatusForbidden},
		{"a form", rlockui.ForceUnlock, r.ID, ref, append([]string{"Content-Type", "text/plain"}, root...), http.StatusUnsupportedMediaType},
		{"another action", "flush", r.ID, ref, root, http.StatusBadRequest},
		{"another lock", rlockui.ForceUnlock, "00000000000000000000", ref, root, http.StatusConflict},
		{"another hold", rlockui.ForceUnlock, r.ID, "00000000000000000000", root, http.StatusConflict},
		{"no hold", rlockui.ForceUnlock, r.ID, "", root, http.StatusConflict},
		{"a long body", rlockui.ForceUnlock, r.ID, strings.Repeat("x", 10_000), root, http.StatusBadRequest},
	} {
		if answer, text := s.write(c.action, c.lock, c.hold, c.header...); answer.StatusCode != c.status {
			t.Errorf("%s: %s, want %d: %s", c.what, answer.Status, c.status, text)
		}
	}
	if len(asked) != 1 {
		t.Errorf("Allow was asked for %v", asked)
	}
	locktest.MustBeHeld(t, l)

	requested := lease.ReleaseRequested()
	answer, text := s.write(rlockui.RequestRelease, r.ID, "", append([]string{"Sec-Fetch-Site", "same-origin"}, root...)...)
	if answer.StatusCode != http.StatusOK || text != "{\"done\":true}\n" {
		t.Errorf("%s: %s", answer.Status, text)
	}
	<-requested
	answer, text = s.write(rlockui.ForceUnlock, r.ID, ref, root...)
	if answer.StatusCode != http.StatusOK || text != "{\"done\":true}\n" {
		t.Errorf("%s: %s", answer.Status, text)
	}
	locktest.MustBeFree(t, l)
	want := rlockui.Write{Action: rlockui.ForceUnlock, Lock: "mine", Type: "Lock", HoldID: lease.HoldID()}
	if got := asked[len(asked)-1]; got != want {
		t.Errorf("Allow was asked for %+v, want %+v", got, want)
	}
	_ = lease.Unlock(bg)
}

func TestHoldsOfEachTypeCanBeEnded(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
	c := b.NewClient(t)
	done := make(chan struct{})
	result, began := make(chan error), make(chan struct{})
	go func() {
		_, _, err := c.NewOnce("Once", rlock.MinKeep).Do(bg, func(context.Context) ([]byte, error) {
			close(began)
			<-done
			return nil, nil
		})
		result <- err
	}()
	<-began
	defer func() {
		close(done)
		<-result // its hold was ended
	}()
	held := map[string]rlock.Locker{
		"Lock": c.NewLock("Lock"), "ReadWriteLock": c.NewReadWriteLock("ReadWriteLock").Writer, "FairReadWriteLock": c.NewFairReadWriteLock("FairReadWriteLock").Writer,
		"PriorityLock": c.NewPriorityLock("PriorityLock"), "ReadWriteLock of readers": c.NewReadWriteLock("ReadWriteLock of readers").Reader,
		"FairReadWriteLock of readers": c.NewFairReadWriteLock("FairReadWriteLock of readers").Reader, "FencedLock": c.NewFencedLock("FencedLock"),
	}
	for _, l := range held {
		lease := locktest.MustLock(t, l)
		defer func() { _ = lease.Unlock(bg) }()
	}
	election, err := c.NewElection("Election").Campaign(bg, "me")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = election.Unlock(bg) }()
	place, err := c.NewDoubleBarrier("DoubleBarrier", 1).Enter(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = place.Unlock(bg) }()

	v := s.until("all are shown", "", func(v *view) bool { return v.Held == len(held)+3 })
	for _, l := range v.Locks {
		if kind, _, _ := strings.Cut(l.Name, " "); l.Type != kind {
			t.Errorf("%s is shown as a %s", l.Name, l.Type)
		}
		if answer, text := s.write(rlockui.ForceUnlock, l.ID, l.Holders[0].Ref); answer.StatusCode != http.StatusOK || text != "{\"done\":true}\n" {
			t.Errorf("%s: %s: %s", l.Name, answer.Status, text)
		}
	}
	s.until("all are free", "", func(v *view) bool { return v.Held == 0 })
}

func TestPermitsCannotBeEnded(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
	lease, err := b.NewClient(t).NewPermitSemaphore("permits", rlock.WithPermits(3)).Acquire(bg, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer locktest.MustUnlock(t, lease)
	l := s.held("permits")
	answer, text := s.write(rlockui.ForceUnlock, l.ID, l.Holders[0].Ref)
	if l.Type != "PermitSemaphore" || answer.StatusCode != http.StatusConflict || !strings.Contains(text, "end with their lease") {
		t.Errorf("%+v, %s: %s", l, answer.Status, text)
	}
}

// The votes of the other nodes would stay.
func TestRedLockCannotBeEndedOnOneNode(t *testing.T) {
	t.Parallel()
	var backends []*locktest.Backend
	var holders []*rlock.Client
	for range 3 {
		b := locktest.OnMiniredis(t)
		backends, holders = append(backends, b), append(holders, b.NewClient(t))
	}
	l, err := rlock.NewRedLock("red", holders)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, l)
	defer locktest.MustUnlock(t, lease)
	s := open(t, backends[0], rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
	r := s.held("red")
	answer, text := s.write(rlockui.ForceUnlock, r.ID, r.Holders[0].Ref)
	if answer.StatusCode != http.StatusConflict || !strings.Contains(text, "Options.Nodes") {
		t.Errorf("%s: %s", answer.Status, text)
	}
	if v := s.snapshot("?lock=" + r.ID); v.Lock.CanEnd {
		t.Error("the page has the buttons")
	}
	locktest.MustBeHeld(t, l)
}

func TestNamesOfOthersAreData(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	s := open(t, b, rlockui.Options{})
	c := b.NewClient(t)
	for _, name := range []string{"<script>alert(1)</script>", "a\u202eb\u2066", "line\nfeed\x1b[2J", "\xff\xfe", strings.Repeat("long", 2500), `"quoted"</p>&amp;`} {
		lease := locktest.MustLock(t, c.NewLock(name))
		defer locktest.MustUnlock(t, lease)
	}
	// Labels that no client of this module could have.
	s.rdb.Set(bg, "rlock:client:4b5a8f3e-3f8d-8a1c-9e", `{"label":"<img src=x>\u202e\n","program":"x","host":"\u2067h\u0000","pid":1}`, 0)
	s.rdb.PExpire(bg, "rlock:client:4b5a8f3e-3f8d-8a1c-9e", 600_000_000_000)
	put(t, s, 1)

	s.until("all are shown", "", func(v *view) bool { return v.Held == 7 })
	_, text := s.ask("GET", prefix+"snapshot.json?rows=50", "")
	for _, bad := range []string{"<script", "<img", "\u202e", "\u2066", "\u2067", "\x1b", "\xff", strings.Repeat("long", 80)} {
		if strings.Contains(text, bad) {
			t.Errorf("the snapshot has %q", bad)
		}
	}
	for _, escaped := range []string{"\\\\u202e", "\\\\n", "\\\\xff"} {
		if !strings.Contains(text, escaped) {
			t.Errorf("the snapshot has no %q", escaped)
		}
	}
	var v view
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if v.lock("<script>alert(1)</script>") == nil {
		t.Error("a name is not what it was")
	}
	for _, l := range v.Locks {
		if len(l.Name) > 300 {
			t.Errorf("%d bytes of a name", len(l.Name))
		}
		if page := s.snapshot("?lock=" + l.ID).Lock; page == nil || !page.Known || page.Name != l.Name {
			t.Errorf("the page of %.50q: %+v", l.Name, page)
		}
	}
	if v := s.snapshot("?q=" + url.QueryEscape(`A\u202e`)); v.Matched != 1 {
		t.Errorf("a search for what is shown: %+v", v.Locks)
	}
	if v := s.snapshot("?lock=" + url.QueryEscape("<script>")); v.Lock == nil || v.Lock.Known {
		t.Errorf("an unknown lock: %+v", v.Lock)
	}
	st := s.stream("") // a name breaks no event
	if v := st.next(t); v.Held != 7 {
		t.Errorf("%d locks in an event", v.Held)
	}
}
