package idempotency_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-rlock/rlock/adapters/idempotency"
)

// Whatever the key, the type and the body are: two equal requests are executed once and get one answer, or are both refused
// with a problem; and the key of an executed request is refused for another body.
func FuzzRequests(f *testing.F) {
	for _, key := range []string{"", "a", `"a"`, `"a\"b"`, `"a\x"`, `"`, "a b", "a,b", "\x00", "é", string(bytes.Repeat([]byte("k"), 256)), `"";q=1`} {
		f.Add(key, "application/json", []byte(`{"n":1}`), []byte(`{"n":2}`), "")
		f.Add(key, "multipart/form-data; boundary=b", []byte("--b\r\n\r\nx\r\n--b--"), []byte("--b"), "wait=0")
		f.Add(key, ";;", []byte{}, []byte{0xff}, "wait=99999999999999999999, wait")
	}
	of := inMemory(f)
	f.Fuzz(func(t *testing.T, key, contentType string, body, other []byte, prefer string) {
		if err := of.rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		runs := 0
		middleware, err := idempotency.New(of.client, of.rdb, "shop", user)
		if err != nil {
			t.Fatal(err)
		}
		handler := middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			read, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "run %d: %x", runs, read)
		}))
		send := func(body []byte) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", bytes.NewReader(body))
			r.Header = http.Header{idempotency.Header: {key}, "Content-Type": {contentType}, "Prefer": {prefer}, "User": {"u"}}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		first, second := send(body), send(body)
		switch {
		case runs == 0:
			for _, w := range []*httptest.ResponseRecorder{first, second} {
				if w.Code != http.StatusBadRequest || !isProblem(w) {
					t.Errorf("key %q: %d %s, and it was not executed", key, w.Code, w.Body)
				}
			}
			return
		case runs > 1:
			t.Fatalf("key %q: two equal requests were executed %d times", key, runs)
		case first.Code != http.StatusCreated || first.Body.String() != fmt.Sprintf("run 1: %x", body):
			t.Errorf("key %q: the answer is %d %s", key, first.Code, first.Body)
		case second.Code != first.Code || second.Body.String() != first.Body.String() || second.Header().Get(idempotency.ReplayedHeader) != "true":
			t.Errorf("key %q: answered with %d %q, and repeated with %d %q", key, first.Code, first.Body, second.Code, second.Body)
		}
		if w := send(other); !bytes.Equal(body, other) && contentType != "" && !mayBeEqual(contentType) && (w.Code != http.StatusUnprocessableEntity || !isProblem(w)) {
			t.Errorf("key %q: another body is answered with %d %s", key, w.Code, w.Body)
		}
		if runs > 1 {
			t.Errorf("key %q: another body was executed too", key)
		}
	})
}

// mayBeEqual reports whether two bodies of a type may be one request: of multipart bodies the parts count.
func mayBeEqual(contentType string) bool {
	return bytes.Contains(bytes.ToLower([]byte(contentType)), []byte("multipart/"))
}

func isProblem(w *httptest.ResponseRecorder) bool {
	var p struct{ Status int }
	return json.Unmarshal(w.Body.Bytes(), &p) == nil && p.Status == w.Code && w.Header().Get("Content-Type") == "application/problem+json"
}
