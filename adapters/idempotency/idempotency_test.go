package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/adapters/idempotency"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlocktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

func user(r *http.Request) (string, error) { return r.Header.Get("User"), nil }

// backend is a Redis.
type backend struct {
	client *rlock.Client
	rdb    redis.UniversalClient
}

func inMemory(t testing.TB) backend {
	srv := rlocktest.New(t)
	return backend{srv.Client(), srv.Redis()}
}

// serve starts a server with the middleware around a handler. The default handler counts, and says which run it was.
func serve(t testing.TB, of backend, handler http.HandlerFunc, opts ...idempotency.Option) *caller {
	t.Helper()
	c := &caller{t: t}
	if handler == nil {
		handler = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Location", "/orders/1")
			w.Header().Set("Set-Cookie", "session=1")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "run %d: %s", c.runs.Add(1), body)
		}
	}
	middleware, err := idempotency.New(of.client, of.rdb, "shop", user, opts...)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(middleware(handler))
	t.Cleanup(srv.Close)
	c.url, c.http = srv.URL, srv.Client()
	return c
}

type caller struct {
	t    testing.TB
	url  string
	http *http.Client
	runs atomic.Int32
}

type reply struct {
	status int
	header http.Header
	body   string
}

// send sends a request with headers "Name: value".
func (c *caller) send(method, path, body string, headers ...string) reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Host = "shop.example" // in each process
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Add(name, value)
	}
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

func (c *caller) post(body string, headers ...string) reply {
	c.t.Helper()
	return c.send("POST", "/orders", body, headers...)
}

// want checks that a reply is a problem of this status.
func (r reply) want(t *testing.T, status int) {
	t.Helper()
	var p struct {
		Title  string
		Status int
	}
	if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != status || p.Status != status || p.Title == "" || r.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v %s; want a problem %d", r.status, r.header, r.body, status)
	}
}

const key = `Idempotency-Key: "8e03978e-40d5-43e8-bc93-6894a57f9324"`

func TestARepeatedRequestGetsTheSameAnswer(t *testing.T) {
	t.Parallel()
	c := serve(t, inMemory(t), nil)
	first := c.post("tea", key)
	if first.status != 201 || first.body != "run 1: tea" || first.header.Get(idempotency.ReplayedHeader) != "" {
		t.Errorf("%+v", first)
	}
	for _, same := range []string{key, strings.ReplaceAll(key, `"`, "")} { // many clients send no quotes
		again := c.post("tea", same)
		if again.status != 201 || again.body != first.body || again.header.Get("Location") != "/orders/1" || again.header.Get("Content-Type") != first.header.Get("Content-Type") {
			t.Errorf("%+v", again)
		}
		if again.header.Get(idempotency.ReplayedHeader) != "true" || again.header.Get("Set-Cookie") != "" {
			t.Errorf("the headers of the replay are %v", again.header)
		}
	}
	if n := c.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

func TestAMissingOrInvalidKeyIsABadRequest(t *testing.T) {
	t.Parallel()
	c := serve(t, inMemory(t), nil)
	c.post("tea").want(t, 400)
	for _, value := range []string{``, `""`, `"a`, `a"b`, `"a\b"`, `"a\"`, `a b`, `a, b`, strings.Repeat("x", 256), `"ü"`} {
		c.post("tea", "Idempotency-Key: "+value).want(t, 400)
	}
	c.post("tea", "Idempotency-Key: a", "Idempotency-Key: b").want(t, 400)
	if n := c.runs.Load(); n != 0 {
		t.Errorf("%d runs", n)
	}
	for _, value := range []string{`"a \" \\ b"`, strings.Repeat("x", 255)} {
		if r := c.post("tea", "Idempotency-Key: "+value); r.status != 201 {
			t.Errorf("%q: %+v", value, r)
		}
	}
}

func TestOtherMethodsAndOptionalKeysPassThrough(t *testing.T) {
	t.Parallel()
	in := inMemory(t)
	c := serve(t, in, nil)
	for n := 1; n <= 2; n++ {
		if r := c.send("PUT", "/orders", "tea", key); r.body != fmt.Sprintf("run %d: tea", n) {
			t.Errorf("%+v", r)
		}
	}
	c = serve(t, in, nil, idempotency.WithOptionalKey())
	for n := 1; n <= 2; n++ {
		if r := c.post("tea"); r.body != fmt.Sprintf("run %d: tea", n) {
			t.Errorf("%+v", r)
		}
	}
}

func TestAKeyWithAnotherRequestIsUnprocessable(t *testing.T) {
	t.Parallel()
	c := serve(t, inMemory(t), nil)
	c.post("tea", key)
	c.post("coffee", key).want(t, 422)
	c.post("tea", key, "Content-Type: text/plain").want(t, 422)
	if n := c.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

func TestAKeyIsBoundToWhoSendsItAndWhere(t *testing.T) {
	t.Parallel()
	c := serve(t, inMemory(t), nil)
	for n, send := range []func() reply{
		func() reply { return c.post("tea", key) },
		func() reply { return c.post("tea", key, "User: 7") },
		func() reply { return c.send("PATCH", "/orders", "tea", key) },
		func() reply { return c.send("POST", "/orders/2", "tea", key) },
		func() reply { return c.send("POST", "/orders?express", "tea", key) },
	} {
		if r := send(); r.body != fmt.Sprintf("run %d: tea", n+1) {
			t.Errorf("%+v", r)
		}
	}
}

// held is a handler that says that it runs, and waits.
func held(answer string) (handler http.HandlerFunc, runs, goOn chan struct{}) {
	runs, goOn = make(chan struct{}, 100), make(chan struct{})
	return func(w http.ResponseWriter, r *http.Request) {
		runs <- struct{}{}
		<-goOn
		_, _ = io.WriteString(w, answer)
	}, runs, goOn
}

func TestWhileTheFirstIsInProgress(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	handler, runs, goOn := held("done")
	c := serve(t, backend{srv.Client(), srv.Redis()}, handler)
	replies := make(chan reply, 2)
	go func() { replies <- c.post("tea", key) }()
	<-runs
	// Without a wish to wait it is a conflict, and so it is at the end of the wait.
	for _, headers := range [][]string{{key}, {key, "Prefer: wait=0"}, {key, "Prefer: wait=soon"}, {key, "Prefer: respond-async, wait=1"}} {
		r := c.post("tea", headers...)
		r.want(t, 409)
		if r.header.Get("Retry-After") == "" {
			t.Errorf("%v", r.header)
		}
	}
	// Who waits gets the answer.
	go func() { replies <- c.post("tea", key, "Prefer: wait=10") }()
	close(goOn)
	replayed := 0
	for range 2 {
		r := <-replies
		if r.status != 200 || r.body != "done" {
			t.Errorf("%+v", r)
		}
		if r.header.Get(idempotency.ReplayedHeader) == "true" {
			replayed++
		}
	}
	if replayed != 1 || len(runs) != 0 {
		t.Errorf("%d replays, %d more runs", replayed, len(runs))
	}
}

func TestErrorsAreRepeatedUnlessTheyAskToTryAgain(t *testing.T) {
	t.Parallel()
	for status, runs := range map[int]int32{500: 1, 404: 1, 422: 1, 503: 2, 429: 2} {
		var c *caller
		c = serve(t, inMemory(t), func(w http.ResponseWriter, _ *http.Request) {
			c.runs.Add(1)
			http.Error(w, "no", status)
		})
		for range 2 {
			if r := c.post("tea", key); r.status != status || r.body != "no\n" {
				t.Errorf("%+v", r)
			}
		}
		if n := c.runs.Load(); n != runs {
			t.Errorf("%d: %d runs; want %d", status, n, runs)
		}
	}
	c := serve(t, inMemory(t), nil, idempotency.WithKept(func(status int) bool { return status != 201 }))
	if first, second := c.post("tea", key), c.post("tea", key); first.body == second.body {
		t.Errorf("%+v", second)
	}
}

func TestAPanicKeepsNothing(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	c := serve(t, inMemory(t), func(w http.ResponseWriter, _ *http.Request) {
		if runs.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "done")
	})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", c.url+"/orders", strings.NewReader("tea"))
	req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
	req.Host = "shop.example"
	if res, err := c.http.Do(req); err == nil {
		_ = res.Body.Close()
		t.Error("the panic was not passed on")
	}
	if r := c.post("tea", key); r.status != 200 || r.body != "done" {
		t.Errorf("%+v", r)
	}
}

// The caller leaves. The handler goes on, and who repeats the request gets its answer: nothing is released too early,
// and nothing stays locked though the context has ended.
func TestTheCallerLeaves(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	handler, runs, goOn := held("done")
	canceled := make(chan error, 1)
	c := serve(t, backend{srv.Client(), srv.Redis()}, func(w http.ResponseWriter, r *http.Request) {
		handler(w, r)
		canceled <- r.Context().Err()
	})
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", c.url+"/orders", strings.NewReader("tea"))
	req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
	req.Host = "shop.example"
	left := make(chan error, 1)
	go func() {
		res, err := c.http.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		left <- err
	}()
	<-runs
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	c.post("tea", key).want(t, 409)
	close(goOn)
	if err := <-canceled; err != nil {
		t.Errorf("the handler was told %v", err)
	}
	locktest.Eventually(t, "the answer is kept", func() bool { return c.post("tea", key).status == 200 })
	if len(runs) != 0 {
		t.Error("it ran again")
	}
	if n := len(srv.Client().Held()); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// The process dies while it executes: the key is free at the end of its lease.
func TestACrashDoesNotStrandTheKey(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	child := locktest.StartChild(t, "serve", srv.Addr())
	dead := &caller{t: t, url: child.Report("url"), http: &http.Client{}}
	t.Cleanup(dead.http.CloseIdleConnections)
	gone := make(chan error, 1)
	go func() {
		res, err := dead.http.Post(dead.url+"/hang", "", nil)
		if err == nil {
			_ = res.Body.Close()
		}
		gone <- err
	}()
	if err := <-gone; err != nil { // it has no key: the server answers
		t.Fatal(err)
	}
	go func() {
		req, _ := http.NewRequest("POST", dead.url+"/hang", strings.NewReader("tea"))
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		req.Host = "shop.example"
		_, err := dead.http.Do(req)
		gone <- err
	}()
	child.Report("runs")
	child.Kill()
	if err := <-gone; err == nil {
		t.Error("a dead process has answered")
	}
	c := serve(t, backend{locktest.NewClient(t, srv.Client()), srv.Client()}, nil)
	locktest.Eventually(t, "another executes it", func() bool {
		r := c.send("POST", "/hang", "tea", key)
		return r.status == 201
	})
	if n := c.runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A hundred equal requests over two processes: one execution.
func TestAHundredEqualRequestsOverTwoProcesses(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	transport := &http.Transport{MaxConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	var callers []*caller
	for range 2 {
		child := locktest.StartChild(t, "serve", srv.Addr())
		callers = append(callers, &caller{t: t, url: child.Report("url"), http: &http.Client{Transport: transport}})
	}
	replies := make(chan reply, 100)
	for i := range cap(replies) {
		go func() {
			headers := []string{key}
			if i%4 > 0 {
				headers = append(headers, "Prefer: wait=60")
			}
			replies <- callers[i%2].send("POST", "/slow", "tea", headers...)
		}()
	}
	statuses, answers, replayed := map[int]int{}, map[string]bool{}, 0
	for range cap(replies) {
		r := <-replies
		statuses[r.status]++
		if r.status == 200 {
			answers[r.body] = true
		}
		if r.header.Get(idempotency.ReplayedHeader) == "true" {
			replayed++
		}
	}
	t.Logf("%v, %d replays", statuses, replayed)
	if statuses[200]+statuses[409] != 100 || statuses[200] < 75 || replayed != statuses[200]-1 || len(answers) != 1 {
		t.Errorf("%v, %d replays, answers %v", statuses, replayed, answers)
	}
	if n := srv.Client().Get(t.Context(), "runs").Val(); n != "1" {
		t.Errorf("%s runs", n)
	}
}

func TestChildProcess(t *testing.T) {
	locktest.RunChild(t, map[string]locktest.ChildMode{"serve": childServe})
}

func childServe(t *testing.T, parent *locktest.Parent, addr string, _ []string) {
	client, rdb := locktest.ChildClient(t, addr, rlock.WithWatchdogLease(2*time.Second))
	c := serve(t, backend{client, rdb}, func(w http.ResponseWriter, r *http.Request) {
		run := rdb.Incr(context.Background(), "runs").Val()
		if r.URL.Path == "/hang" {
			parent.Report("runs")
			select {}
		}
		time.Sleep(300 * time.Millisecond)
		fmt.Fprintf(w, "run %d", run)
	}, idempotency.WithMaxWait(time.Minute))
	parent.Report("url %s", c.url)
	select {}
}

func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		srv := rlocktest.New(t)
		reports := make(chan error, 100)
		opts := []idempotency.Option{idempotency.WithReport(func(_ *http.Request, err error) { reports <- err })}
		if open {
			opts = append(opts, idempotency.WithFailOpen())
		}
		c := serve(t, backend{srv.NewClient(rlock.WithCommandTimeout(100 * time.Millisecond)), srv.Redis()}, nil, opts...)
		srv.Disconnect()
		r := c.post("tea", key)
		if open {
			if r.status != 201 || r.body != "run 1: tea" {
				t.Errorf("%+v", r)
			}
		} else {
			r.want(t, 503)
		}
		if err := <-reports; !errors.Is(err, rlock.ErrUnreachable) {
			t.Error(err)
		}
		srv.Recover()
	}
}

func TestALossIsReported(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	reports := make(chan error, 1)
	c := serve(t, backend{srv.Client(), srv.Redis()}, func(w http.ResponseWriter, r *http.Request) {
		lease, ok := rlock.LeaseFrom(r.Context())
		if !ok || lease.Token() <= 0 {
			t.Errorf("the lease is %v", lease)
		}
		if _, err := srv.NewClient().NewOnce(lease.Name(), time.Hour).ForceUnlock(t.Context()); err != nil {
			t.Error(err)
		}
		srv.Advance(rlock.DefaultWatchdogLease)
		<-r.Context().Done()
		_, _ = io.WriteString(w, "done")
	}, idempotency.WithReport(func(_ *http.Request, err error) { reports <- err }))
	if r := c.post("tea", key); r.status != 200 || r.body != "done" {
		t.Errorf("%+v", r)
	}
	if err := <-reports; !errors.Is(err, rlock.ErrLeaseLost) {
		t.Error(err)
	}
}

// What is too long or a stream is sent as it is, not kept, and not executed again.
func TestLongAnswersAndStreamsPassThrough(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", idempotency.MaxAnswer)
	for what, handler := range map[string]http.HandlerFunc{
		"just kept": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) },
		"too long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, long)
			_, _ = io.WriteString(w, "y")
		},
		"long headers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", strings.Repeat("h", 20<<10))
			_, _ = io.WriteString(w, long)
		},
		"flushed and too long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, long)
		},
		"flushed when too long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, long+"y")
			c := http.NewResponseController(w)
			if err := errors.Join(c.SetWriteDeadline(time.Now().Add(time.Minute)), c.Flush()); err != nil {
				t.Error(err)
			}
		},
	} {
		runs := 0
		c := serve(t, inMemory(t), func(w http.ResponseWriter, r *http.Request) { runs++; handler(w, r) }, idempotency.WithMaxAnswer(idempotency.MaxAnswer))
		first := c.post("tea", key)
		if first.status != 200 {
			t.Errorf("%s: %d", what, first.status)
		}
		again := c.post("tea", key)
		if what == "just kept" {
			if again.body != long || again.header.Get(idempotency.ReplayedHeader) != "true" {
				t.Errorf("%s: %d, %d bytes", what, again.status, len(again.body))
			}
		} else {
			again.want(t, 409)
			if again.header.Get("Retry-After") != "" || again.header.Get(idempotency.ReplayedHeader) != "true" {
				t.Errorf("%s: %v", what, again.header)
			}
		}
		if runs != 1 {
			t.Errorf("%s: %d runs", what, runs)
		}
	}
}

// A stream ends when its reader leaves, and a connection can be taken over.
func TestAStreamEndsAndAHijackWorks(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	c := serve(t, inMemory(t), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hijack" {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\nhello\n")
			_ = conn.Close()
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	ctx, leave := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", c.url+"/stream", nil)
	req.Header.Set("Idempotency-Key", "a")
	res, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); line != "data: 1\n" {
		t.Error(line, err)
	}
	leave()
	_ = res.Body.Close()
	<-ended

	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /hijack HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a\r\nContent-Length: 0\r\n\r\n")
	text, _ := io.ReadAll(conn)
	if !bytes.HasSuffix(text, []byte("hello\n")) {
		t.Errorf("%q", text)
	}
}

func TestALongRequestIsRefused(t *testing.T) {
	t.Parallel()
	c := serve(t, inMemory(t), nil, idempotency.WithMaxRequest(3))
	c.post("coffee", key).want(t, 413)
	if r := c.post("tea", key); r.status != 201 {
		t.Errorf("%+v", r)
	}
}

// chi and echo as they are.
func TestRouters(t *testing.T) {
	t.Parallel()
	in := inMemory(t)
	middleware, err := idempotency.New(in.client, in.rdb, "shop", user)
	if err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int32
	router := chi.NewRouter()
	router.Use(middleware)
	router.Post("/chi/{id}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s, run %d", chi.URLParam(r, "id"), runs.Add(1))
	})
	inside, around := echo.New(), echo.New()
	handler := func(c echo.Context) error {
		if c.Param("id") == "8" {
			runs.Add(1)
			return echo.NewHTTPError(http.StatusTeapot, "no tea")
		}
		return c.String(http.StatusOK, fmt.Sprintf("%s, run %d", c.Param("id"), runs.Add(1)))
	}
	inside.POST("/echo/:id", handler, echo.WrapMiddleware(middleware))
	around.POST("/around/:id", handler)
	for path, h := range map[string]http.Handler{"/chi/7": router, "/echo/7": inside, "/around/7": middleware(around), "/around/8": middleware(around)} {
		runs.Store(0)
		srv := httptest.NewServer(h)
		c := &caller{t: t, url: srv.URL, http: srv.Client()}
		first, again := c.send("POST", path, "", key), c.send("POST", path, "", key)
		if strings.HasSuffix(path, "7") && (first.status != 200 || first.body != "7, run 1") || strings.HasSuffix(path, "8") && first.status != http.StatusTeapot {
			t.Errorf("%s: %+v", path, first)
		}
		if again.status != first.status || again.body != first.body || again.header.Get(idempotency.ReplayedHeader) != "true" || runs.Load() != 1 {
			t.Errorf("%s: %+v", path, again)
		}
		srv.Close()
	}
}

func TestNewRefusesInvalidArguments(t *testing.T) {
	t.Parallel()
	in := inMemory(t)
	for what, of := range map[string]func() (func(http.Handler) http.Handler, error){
		"no client":    func() (func(http.Handler) http.Handler, error) { return idempotency.New(nil, in.rdb, "shop", user) },
		"no Redis":     func() (func(http.Handler) http.Handler, error) { return idempotency.New(in.client, nil, "shop", user) },
		"no namespace": func() (func(http.Handler) http.Handler, error) { return idempotency.New(in.client, in.rdb, "", user) },
		"no principal": func() (func(http.Handler) http.Handler, error) {
			return idempotency.New(in.client, in.rdb, "shop", nil)
		},
	} {
		if _, err := of(); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i, opt := range []idempotency.Option{nil, idempotency.WithKeep(0), idempotency.WithMethods(), idempotency.WithMaxWait(-1),
		idempotency.WithMaxRequest(-1), idempotency.WithMaxBodies(idempotency.DefaultMaxRequest), idempotency.WithMaxAnswer(-1), idempotency.WithMaxAnswer(idempotency.MaxAnswer + 1), idempotency.WithMaxKept(0),
		idempotency.WithHeaders("set-cookie"), idempotency.WithKept(nil), idempotency.WithReport(nil)} {
		if _, err := idempotency.New(in.client, in.rdb, "shop", user, opt); !errors.Is(err, rlock.ErrInvalidArgument) {
			t.Errorf("option %d: %v", i, err)
		}
	}
}
