package rlockui_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockui"
)

// Pages that are closed at any moment end all they have begun: the main function of the tests looks for goroutines.
func TestCloseAtAnyMomentWhileViewersComeAndGo(t *testing.T) {
	t.Parallel()
	b := locktest.OnMiniredis(t)
	for range 10 {
		s := open(t, b, rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
		var viewers sync.WaitGroup
		for range 8 {
			viewers.Go(func() {
				for {
					ctx, cancel := context.WithTimeout(bg, time.Duration(rand.IntN(int(interval))))
					r, err := http.NewRequestWithContext(ctx, "GET", s.URL+prefix+[]string{"events", "snapshot.json"}[rand.IntN(2)], nil)
					if err != nil {
						t.Error(err)
					}
					status := 0
					if answer, err := s.Client().Do(r); err == nil {
						status = answer.StatusCode
						_, _ = io.Copy(io.Discard, answer.Body)
						answer.Body.Close()
					}
					cancel()
					if status == http.StatusServiceUnavailable {
						return // closed
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(int(3 * interval))))
		b.Mini.SetError("LOADING Redis is loading the dataset in memory")
		time.Sleep(time.Duration(rand.IntN(int(interval))))
		b.Mini.SetError("")
		_ = s.pages.Close()
		viewers.Wait()
	}
}
