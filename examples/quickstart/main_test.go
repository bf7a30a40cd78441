package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestQuickstart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out strings.Builder
	err := start(ctx, &out, "")
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`Redis: in memory`,
		`ms  alpha/\d   has the lock after +\d+ms, token \d{16}\n`,
		`ms  beta/\d    has the lock after +\d+ms, token \d{16}\n`,
		`alpha     is in 2 times`,
		`beta      gave up: .*not acquired: timed out after .*; held by .*, .* left\n`,
		`operator  frees the lock by force: true\n`,
		`alpha     its context ends: lease lost: taken over by another owner\n`,
		`is lower: true\n`,
		`done\n$`,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("no line matches %q", line)
		}
	}
	if n := strings.Count(out.String(), "has the lock after"); n != 6 {
		t.Errorf("%d of 6 goroutines had the lock", n)
	}
}
