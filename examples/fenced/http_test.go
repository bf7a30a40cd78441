package main

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/go-rlock/rlock/rlocktest"
)

func TestStaleRequestIsRefused(t *testing.T) {
	t.Parallel()
	srv := rlocktest.New(t)
	writes := 0
	service := fence(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { writes++ }))
	send := func(token string) int {
		r := httptest.NewRequest(http.MethodPut, "/account/7", nil)
		r.Header.Set("Fencing-Token", token)
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r)
		return w.Code
	}
	slow, err := srv.Client().NewLock("account:7").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := srv.Steal("account:7")
	for _, c := range []struct {
		token string
		want  int
	}{
		{strconv.FormatInt(next.Token(), 10), http.StatusOK},
		{strconv.FormatInt(next.Token(), 10), http.StatusOK},
		{strconv.FormatInt(slow.Token(), 10), http.StatusPreconditionFailed},
		{"", http.StatusBadRequest},
	} {
		if got := send(c.token); got != c.want {
			t.Errorf("token %q: %d; want %d", c.token, got, c.want)
		}
	}
	if writes != 2 {
		t.Errorf("%d writes; want 2", writes)
	}
}
