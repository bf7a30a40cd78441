package main

import (
	"net/http"
	"strconv"
	"sync"
)

// fence serves a request if its token is not lower than the highest so far.
func fence(next http.Handler) http.Handler {
	// Held while next writes: the check and the write are one step.
	var mu sync.Mutex
	var highest int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
		if err != nil {
			http.Error(w, "Fencing-Token: a number is required",
				http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if token < highest {
			http.Error(w, "another holder has written since",
				http.StatusPreconditionFailed)
			return
		}
		highest = token
		next.ServeHTTP(w, r)
	})
}
