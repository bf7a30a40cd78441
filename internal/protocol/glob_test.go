package protocol

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
)

// Patterns match what they match in Redis.
func TestPatternsMatchAsInRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client()
	ctx := context.Background()
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(from string, most int) string {
		b := make([]byte, r.IntN(most)+1)
		for i := range b {
			b[i] = from[r.IntN(len(from))]
		}
		return string(b)
	}
	texts := map[string]bool{"app:[*?]\\x^-": true}
	for range 300 {
		texts[draw("abc-^]*", 5)] = true
	}
	for text := range texts {
		if err := rdb.Set(ctx, text, 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	patterns := []string{"*", "a*b*c", "[a-b]*", "[b-a]*", "[^a]*", "?", "[]a]*", "[a-]", `[\]a]`, `\*`, escape("app:[*?]\\x^-"), "[^^]"}
	for range 300 {
		patterns = append(patterns, draw("abc-^]*?[]\\", 6))
	}
	checked := 0
	for _, p := range patterns {
		pattern, err := ParsePattern(p)
		if err != nil {
			continue
		}
		checked++
		keys, err := rdb.Keys(ctx, p).Result()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for _, k := range keys {
			want[k] = true
		}
		for text := range texts {
			if got := pattern.matches(text); got != want[text] {
				t.Errorf("%q matches %q: %v", p, text, got)
			}
		}
		// What a search asks the server for contains what it looks for.
		wide, err := rdb.Keys(ctx, "*"+p+"*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range wide {
			delete(want, k)
		}
		if len(want) > 0 {
			t.Errorf("%q does not have %v", p, fmt.Sprint(want))
		}
	}
	if checked < 100 {
		t.Errorf("only %d patterns were checked", checked)
	}
}

// A pattern of thousands of * costs no more than one of a few: what it means is found out once, and not for each name.
func TestLongPatternIsCheap(t *testing.T) {
	t.Parallel()
	stars, err := ParsePattern(strings.Repeat("*", 3000))
	if err != nil || !stars.matches("") || !stars.matches("a") || len(stars.expr.String()) > 20 {
		t.Errorf("%v %.100s", err, stars.expr)
	}
	many, err := ParsePattern(strings.Repeat("*a", 1500))
	if err != nil || many.least != 1500 || many.matches("aaa") || !many.matches(strings.Repeat("ab", 1499)+"a") {
		t.Errorf("%v %d", err, many.least)
	}
}
