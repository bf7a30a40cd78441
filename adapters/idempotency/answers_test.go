package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-rlock/rlock/adapters/idempotency"
	"github.com/go-rlock/rlock/rlocktest"
)

// handle answers a request without a server.
func handle(h http.Handler, edit func(r *http.Request), method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set(idempotency.Header, "a")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func middleware(t *testing.T, in backend, namespace string, opts ...idempotency.Option) func(http.Handler) http.Handler {
	t.Helper()
	m, err := idempotency.New(in.client, in.rdb, namespace, user, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// says is a handler that says what it is and which run it has.
func says(what string) http.Handler {
	runs := 0
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { runs++; fmt.Fprintf(w, "%s, run %d", what, runs) })
}

const form = "Content-Type: application/x-www-form-urlencoded"

// upload returns a form with a file, each time with another boundary.
func upload(t *testing.T, amount, file string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", "a.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(part, file)
	if err := errors.Join(w.WriteField("amount", amount), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String(), "Content-Type: " + w.FormDataContentType()
}

func TestAFormThatWasParsedBeforeCounts(t *testing.T) {
	t.Parallel()
	for what, parse := range map[string]func(r *http.Request) error{
		"not at all": func(*http.Request) error { return nil },
		"as a form":  func(r *http.Request) error { return r.ParseForm() },
		"multipart": func(r *http.Request) error {
			if err := r.ParseMultipartForm(1 << 20); !errors.Is(err, http.ErrNotMultipart) {
				return err
			}
			return nil
		},
		"and closed": func(r *http.Request) error { return errors.Join(r.ParseForm(), r.Body.Close()) },
	} {
		h := middleware(t, inMemory(t), "shop")(says("order"))
		edit := func(r *http.Request) {
			if err := parse(r); err != nil {
				t.Error(what, err)
			}
		}
		if what == "and closed" {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { edit(r); h.ServeHTTP(w, r) }))
			c := &caller{t: t, url: srv.URL, http: srv.Client()}
			if a, b := c.post("amount=1", key, form), c.post("amount=1", key, form); a.status != 200 || b.body != a.body {
				t.Errorf("%s: %+v, then %+v", what, a, b)
			}
			c.post("amount=1000000", key, form).want(t, 422)
			srv.Close()
			continue
		}
		for n, same := range []string{"amount=1", "amount=1", "amount=1000000"} {
			w := handle(h, edit, "POST", "/", same, form)
			if want := []int{200, 200, 422}[n]; w.Code != want {
				t.Errorf("%s, %s: %d %s; want %d", what, same, w.Code, w.Body, want)
			}
		}
		for n, of := range [][2]string{{"1", "x"}, {"1", "x"}, {"2", "x"}, {"1", "y"}} {
			body, contentType := upload(t, of[0], of[1])
			w := handle(h, edit, "POST", "/upload", body, contentType)
			if want := []int{200, 200, 422, 422}[n]; w.Code != want {
				t.Errorf("%s, upload %v: %d %s; want %d", what, of, w.Code, w.Body, want)
			}
		}
	}
}

// A body that is gone cannot be compared: any other would get its answer.
func TestABodyThatWasReadBeforeIsRefused(t *testing.T) {
	t.Parallel()
	readAll := func(r *http.Request) { _, _ = io.ReadAll(r.Body) }
	for what, before := range map[string]func(r *http.Request){
		"read":                readAll,
		"read in part":        func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 2)) },
		"read without length": func(r *http.Request) { r.ContentLength = -1; readAll(r) },
		"closed":              func(r *http.Request) { readAll(r); _ = r.Body.Close() },
		"decoded as no form":  func(r *http.Request) { _ = json.NewDecoder(r.Body).Decode(new(any)); _ = r.ParseForm() },
		"multipart, in pieces": func(r *http.Request) {
			r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
			_, _ = r.MultipartReader()
			readAll(r)
		},
	} {
		reports := make(chan error, 10)
		runs := says("order")
		h := middleware(t, inMemory(t), "shop", idempotency.WithReport(func(_ *http.Request, err error) { reports <- err }))(runs)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { before(r); h.ServeHTTP(w, r) }))
		c := &caller{t: t, url: srv.URL, http: srv.Client()}
		for _, body := range []string{`{"amount":1}`, `{"amount":1000000}`} {
			r := c.post(body, key, "Content-Type: application/json")
			if r.want(t, 500); r.status != 500 || len(reports) != 1 || !strings.Contains((<-reports).Error(), "read before") {
				t.Errorf("%s: %d %s, %d reports", what, r.status, r.body, len(reports))
			}
		}
		srv.Close()
	}
	// Whoever restores it may read it, and nothing may be sent.
	h := middleware(t, inMemory(t), "shop")(says("order"))
	restored := func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if a, b, c := handle(h, restored, "POST", "/", "1"), handle(h, restored, "POST", "/", "1"), handle(h, nil, "POST", "/empty", ""); a.Code != 200 || b.Body.String() != "order, run 1" || c.Code != 200 {
		t.Error(a, b, c)
	}
}

func TestAKeyIsBoundToHostServiceAndURI(t *testing.T) {
	t.Parallel()
	in := inMemory(t)
	shop, bank := middleware(t, in, "shop"), middleware(t, in, "bank")
	mux := http.NewServeMux()
	mux.Handle("/v1/", http.StripPrefix("/v1", shop(says("v1"))))
	mux.Handle("/v2/", http.StripPrefix("/v2", shop(says("v2"))))
	mux.Handle("b.example/v1/", http.StripPrefix("/v1", shop(says("b"))))
	other := http.NewServeMux()
	other.Handle("/v1/", bank(says("bank")))
	for _, of := range []struct {
		h            http.Handler
		target, want string
	}{
		{mux, "http://a.example/v1/orders", "v1, run 1"},
		{mux, "http://a.example/v2/orders", "v2, run 1"},
		{mux, "http://b.example/v1/orders", "b, run 1"},
		{mux, "http://c.example/v1/orders", "v1, run 2"},
		{other, "http://a.example/v1/orders", "bank, run 1"},
		{mux, "http://a.example/v1/orders?express", "v1, run 3"},
		{mux, "http://A.example/v1/orders", "v1, run 1"}, // the same
	} {
		if w := handle(of.h, nil, "POST", of.target, "tea"); w.Body.String() != of.want {
			t.Errorf("%s: %d %s; want %s", of.target, w.Code, w.Body, of.want)
		}
	}
	// A request for a proxy has the host in its first line.
	if w := handle(mux, func(r *http.Request) { r.RequestURI = "http://a.example/v1/orders" }, "POST", "http://a.example/v1/orders", "tea"); w.Body.String() != "v1, run 1" {
		t.Error(w.Body)
	}
}

func TestANewBoundaryOrANamedCharsetIsTheSameRequest(t *testing.T) {
	t.Parallel()
	h := middleware(t, inMemory(t), "shop")(says("order"))
	for n, of := range []struct {
		contentType, body string
		want              int
	}{
		{"application/json", "{}", 200},
		{"application/json; charset=utf-8", "{}", 200},
		{"Application/JSON;charset=UTF-8", "{}", 200},
		{"application/json; charset=iso-8859-1", "{}", 422},
		{"application/json; profile=x", "{}", 422},
		{"text/plain", "{}", 422},
		{"application/json", "[]", 422},
		{";", "{}", 422},
	} {
		w := handle(h, nil, "POST", "/", of.body, "Content-Type: "+of.contentType)
		if replayed := w.Header().Get(idempotency.ReplayedHeader) == "true"; w.Code != of.want || replayed != (n > 0 && of.want == 200) {
			t.Errorf("%s: %d %s", of.contentType, w.Code, w.Body)
		}
	}
	// What cannot be read as parts is compared as it is.
	for n, body := range []string{"--x\r\n\r\na", "--x\r\n\r\nb", ""} {
		if w := handle(h, nil, "POST", "/broken", body, "Content-Type: multipart/form-data; boundary=x"); w.Code != []int{200, 422, 422}[n] {
			t.Errorf("%q: %d", body, w.Code)
		}
	}
}

func TestAnAnswerThatWasFlushedIsKept(t *testing.T) {
	t.Parallel()
	runs := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.WriteHeader(http.StatusCreated)
		_ = http.NewResponseController(w).Flush() // so it has no length
		fmt.Fprintf(w, "run %d", runs)
	}))
	t.Cleanup(upstream.Close)
	to, _ := url.Parse(upstream.URL)
	for what, handler := range map[string]http.Handler{
		"a proxy": httputil.NewSingleHostReverseProxy(to),
		"gzip": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusCreated)
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, "run ")
			_ = errors.Join(z.Flush(), http.NewResponseController(w).Flush())
			fmt.Fprint(z, runs)
			_ = z.Close()
		}),
		"events": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusCreated)
			w.(http.Flusher).Flush()
			fmt.Fprintf(w, "run %d", runs)
		}),
	} {
		runs = 0
		c := serve(t, inMemory(t), handler.ServeHTTP)
		first, again := c.post("tea", key), c.post("tea", key)
		if first.status != 201 || first.body != "run 1" || again.status != 201 || again.body != "run 1" || runs != 1 || again.header.Get(idempotency.ReplayedHeader) != "true" {
			t.Errorf("%s: %+v, then %+v, %d runs", what, first, again, runs)
		}
	}
}

// The caller of a proxy leaves after the first flush: what was begun goes on, and its answer is whole.
func TestTheCallerLeavesAfterAFlush(t *testing.T) {
	t.Parallel()
	goOn, canceled := make(chan struct{}), make(chan error, 1)
	h := middleware(t, inMemory(t), "shop")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "a")
		_ = http.NewResponseController(w).Flush()
		<-goOn
		_, err := io.WriteString(w, "b")
		canceled <- errors.Join(err, r.Context().Err())
	}))
	left := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		go func() { <-r.Context().Done(); left <- struct{}{} }()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	req, _ := http.NewRequest("POST", srv.URL+"/orders", strings.NewReader("tea"))
	req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
	req.Host = "shop.example"
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	<-left
	close(goOn)
	if err := <-canceled; err != nil {
		t.Error(err)
	}
	go func() { <-left }()
	c := &caller{t: t, url: srv.URL, http: srv.Client()}
	if r := c.post("tea", key, "Prefer: wait=10"); r.body != "ab" || r.header.Get(idempotency.ReplayedHeader) != "true" {
		t.Errorf("%+v", r)
	}
}

// The default bound of an answer, and of the headers beside it.
func TestALongAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	for _, of := range []struct{ body, header, status int }{
		{idempotency.DefaultMaxAnswer, 0, 200}, {idempotency.DefaultMaxAnswer + 1, 0, 409}, {1, 90 << 10, 409},
	} {
		h := middleware(t, inMemory(t), "shop")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", strings.Repeat("x", of.header))
			_, _ = w.Write(make([]byte, of.body))
		}))
		if a, b := handle(h, nil, "POST", "/", ""), handle(h, nil, "POST", "/", ""); a.Body.Len() != of.body || b.Code != of.status {
			t.Errorf("%v: %d bytes, then %d", of, a.Body.Len(), b.Code)
		}
	}
}

// A principal has so many answers in Redis, and not one more; the oldest goes first, and none of another.
func TestThePrincipalsAnswersAreBounded(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	in := backend{srv.Client(), srv.Redis()}
	h := middleware(t, in, "shop", idempotency.WithMaxKept(3))(says("order"))
	post := func(user, key string) string {
		return handle(h, nil, "POST", "/", "tea", "User: "+user, "Idempotency-Key: "+key).Body.String()
	}
	post("other", "a")
	for n := range 10 {
		post("one", fmt.Sprint(n))
		srv.Advance(time.Millisecond) // which the order is in
	}
	keys, err := in.rdb.Keys(t.Context(), "*idempotency:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 2+4 { // the answers, and two indexes
		t.Errorf("%d keys: %q", len(keys), keys)
	}
	for n, want := range map[string]string{"9": "order, run 11", "8": "order, run 10", "7": "order, run 9"} {
		if got := post("one", n); got != want {
			t.Errorf("%s: %s; want %s", n, got, want)
		}
	}
	if got := post("other", "a"); got != "order, run 1" {
		t.Error(got)
	}
	for _, key := range keys {
		if d := in.rdb.PTTL(t.Context(), key).Val(); d <= 0 || d > idempotency.DefaultKeep {
			t.Errorf("%s has a TTL of %v", key, d)
		}
	}
}

// Another program writes to the same Redis.
func TestAStoredAnswerIsNotTrusted(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{5: 500, 99999: 500, 100: 500, -1: 500, 201: 201} {
		in := inMemory(t)
		reports := make(chan error, 1)
		h := middleware(t, in, "shop", idempotency.WithReport(func(_ *http.Request, err error) { reports <- err }))(says("order"))
		handle(h, nil, "POST", "/", "tea")
		for _, key := range in.rdb.Keys(t.Context(), "*idempotency:*").Val() {
			if in.rdb.Type(t.Context(), key).Val() != "hash" {
				continue
			}
			for field, value := range in.rdb.HGetAll(t.Context(), key).Val() {
				if i := strings.Index(value, `"Status":200,"Header":{`); i >= 0 {
					value = strings.Replace(value, `"Status":200,"Header":{`, fmt.Sprintf(`"Status":%d,"Header":{"Set-Cookie":["session=1"],"X-Frame":["a"],`, status), 1)
					in.rdb.HSet(t.Context(), key, field, value)
				}
			}
		}
		w := handle(h, nil, "POST", "/", "tea")
		if w.Code != want || w.Header().Get("Set-Cookie") != "" || w.Header().Get("X-Frame") != "" || want == 500 && len(reports) != 1 {
			t.Errorf("%d: %d %v %s, %d reports", status, w.Code, w.Header(), w.Body, len(reports))
		}
	}
}
