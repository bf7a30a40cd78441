package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestEachTickRunsOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	err := start(ctx, &out, "", 3)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]int{}
	for _, at := range regexp.MustCompile(`(?m)^(\S+) \S+ +ran it`).FindAllStringSubmatch(out.String(), -1) {
		ran[at[1]]++
	}
	if len(ran) != 3 {
		t.Errorf("%d of 3 ticks ran", len(ran))
	}
	for at, n := range ran {
		if n != 1 {
			t.Errorf("the tick of %s ran %d times", at, n)
		}
	}
	if n := strings.Count(out.String(), "leaves it to"); n != 6 {
		t.Errorf("%d of 6 instances left it to another", n)
	}
}
