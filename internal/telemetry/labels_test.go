package telemetry_test

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/telemetry"
	"github.com/google/uuid"
)

func TestLabelOfAName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"invoices": "invoices",
		"order:17": "order:*",
		"order:0198c7e2-1c7a-7cc2-a5f7-28f0d48f376a":       "order:*",
		"order:0198C7E2-1C7A-7CC2-A5F7-28F0D48F376A:items": "order:*:items",
		"{tenant-42}:cart:9f86d081884c7d65":                "{tenant-*}:cart:*",
		"decade":                                           "decade", // six hexadecimal digits
		"a1b2c3":                                           "a*b*c*", // six of them, and numbers
		"deadbeef":                                         "*",      // eight
		"0198c7e2-1c7a":                                    "*-*c*a", // no UUID
		"x0198c7e21c7a7cc2a5f728f0d48f376az":               "x*z",    // a UUID without dashes
		"10.0.0.1:6379":                                    "*.*.*.*:*",
		"2026-11-23T14:40":                                 "*-*-*T*:*",
		"café:1":                                           "café:*",
		"bad\xff:1":                                        "bad:*",
		"*":                                                "*",
		strings.Repeat("long", 100):                        strings.Repeat("long", 32),
		strings.Repeat("ü", 100):                           strings.Repeat("ü", 64),
		"x" + strings.Repeat("ü", 100):                     "x" + strings.Repeat("ü", 63), // a rune is not cut
		strings.Repeat("1", 64<<10):                        "*",
	} {
		if got := telemetry.Collapse(name); got != want {
			t.Errorf("%.60q: %q, want %q", name, got, want)
		}
	}
}

func TestTenThousandLocksHaveOneLabel(t *testing.T) {
	t.Parallel()
	l := telemetry.NewLabels(nil, telemetry.MostLabels)
	seen := map[string]bool{}
	for range 10_000 {
		seen[l.Of(rlock.Event{Lock: "order:" + uuid.NewString()})] = true
	}
	if len(seen) != 1 || !seen["order:*"] {
		t.Errorf("labels: %v", seen)
	}
}

func words(n int) string {
	word := []byte("lock-")
	for ; n > 0; n /= 20 {
		word = append(word, byte('g'+n%20)) // no digit of any kind
	}
	return string(word)
}

func TestLabelsAreCapped(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(rlock.Event) string{"default": nil, "names": telemetry.Name} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most, names = 50, 5000
			l := telemetry.NewLabels(of, most)
			var got [8][names + 1]string
			var wg sync.WaitGroup
			for i := range got {
				wg.Go(func() {
					for n := range names {
						n = (n*7+i*613)%names + 1 // each in another order
						got[i][n] = l.Of(rlock.Event{Lock: words(n)})
					}
				})
			}
			wg.Wait()
			all := map[string]int{}
			for n := 1; n <= names; n++ {
				for i := range got {
					if got[i][n] != got[0][n] {
						t.Fatalf("%q has the labels %q and %q", words(n), got[i][n], got[0][n])
					}
				}
				if got[0][n] != telemetry.Other && got[0][n] != words(n) {
					t.Fatalf("%q has the label %q", words(n), got[0][n])
				}
				all[got[0][n]]++
			}
			if len(all) != most+1 || all[telemetry.Other] != names-most {
				t.Errorf("%d labels, %d names are others", len(all), all[telemetry.Other])
			}
		})
	}
}

// What is kept does not grow with the number and length of names.
func TestLabelsKeepLittle(t *testing.T) {
	l := telemetry.NewLabels(telemetry.Name, telemetry.MostLabels)
	use := func() (heap uint64) {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	tail := strings.Repeat("x", 32<<10)
	before := use()
	for n := range 2000 {
		l.Of(rlock.Event{Lock: words(n+1) + tail}) // 64 MB of names
	}
	if grown := int64(use()) - int64(before); grown > 1<<20 {
		t.Errorf("%d bytes are kept", grown)
	}
	runtime.KeepAlive(l)
}

func TestLabelFunctionThatPanics(t *testing.T) {
	t.Parallel()
	l := telemetry.NewLabels(func(rlock.Event) string { panic("no") }, 10)
	if got := l.Of(rlock.Event{Lock: "a"}); got != telemetry.Other {
		t.Error(got)
	}
}

func FuzzCollapse(f *testing.F) {
	f.Add("order:0198c7e2-1c7a-7cc2-a5f7-28f0d48f376a")
	f.Add("a\xf0\x9f1")
	f.Fuzz(func(t *testing.T, name string) {
		got := telemetry.Collapse(name)
		if !utf8.ValidString(got) || len(got) > 128 || strings.ContainsAny(got, "0123456789") {
			t.Errorf("%q: %q", name, got)
		}
	})
}

// The naming rules of OpenTelemetry, as far as they can be checked.
func TestNamesFollowTheRules(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^rlock(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+$`)
	attribute := regexp.MustCompile(`^(rlock\.[a-z]+(_[a-z]+)*|error\.type)$`)
	names, attributes := map[string]bool{}, map[string]bool{}
	for _, m := range telemetry.Metrics {
		words := strings.Split(m.Name, ".")
		last := words[len(words)-1]
		thing := strings.Trim(m.Unit, "{}")
		switch {
		case !name.MatchString(m.Name), names[m.Name]:
			t.Errorf("%s: not a name, or not the only one", m.Name)
		case regexp.MustCompile(`_?(total|seconds|second|ms|milliseconds|ratio)$`).MatchString(last):
			t.Errorf("%s: it has a unit, or is a total", m.Name)
		case m.Kind == telemetry.Histogram && m.Unit != "s":
			t.Errorf("%s: in %q, not in seconds", m.Name, m.Unit)
		case m.Kind != telemetry.Histogram && m.Unit != "{"+thing+"}":
			t.Errorf("%s: counts %q", m.Name, m.Unit)
		case m.Kind == telemetry.Counter && last != plural(thing):
			t.Errorf("%s: a counter of %s is in the plural", m.Name, thing)
		case m.Kind == telemetry.Gauge && strings.HasSuffix(last, "s"):
			t.Errorf("%s: an UpDownCounter is not in the plural", m.Name)
		case m.Help == "", !strings.HasSuffix(m.Help, "."):
			t.Errorf("%s: no help: %q", m.Name, m.Help)
		}
		suffix := map[telemetry.Kind]string{telemetry.Histogram: "_seconds", telemetry.Counter: "_total"}[m.Kind]
		if want := strings.ReplaceAll(m.Name, ".", "_") + suffix; m.Prometheus != want {
			t.Errorf("%s: in Prometheus %s, want %s", m.Name, m.Prometheus, want)
		}
		names[m.Name] = true
		seen := map[string]bool{}
		for _, key := range m.Keys {
			if !attribute.MatchString(key) || seen[key] {
				t.Errorf("%s: attribute %s", m.Name, key)
			}
			attributes[key], seen[key] = true, true
		}
		if !seen[telemetry.LabelKey] {
			t.Errorf("%s has no label", m.Name)
		}
	}
	// No name is the namespace of another, nor a metric one of an attribute.
	for a := range names {
		for b := range names {
			if strings.HasPrefix(b, a+".") {
				t.Errorf("%s is a name and the namespace of %s", a, b)
			}
		}
		if attributes[a] {
			t.Errorf("%s is a metric and an attribute", a)
		}
	}
	for i, b := range telemetry.Buckets {
		if i > 0 && b <= telemetry.Buckets[i-1] {
			t.Error("buckets do not grow")
		}
	}
	if first, last := telemetry.Buckets[0], telemetry.Buckets[len(telemetry.Buckets)-1]; first != 0.0005 || last != 60 {
		t.Errorf("buckets from %v to %v", first, last)
	}
	var a telemetry.Attributes
	for key := range attributes {
		if v := a.Get(key); v != "" {
			t.Error(fmt.Sprint(key, v))
		}
	}
}

func plural(thing string) string {
	if strings.HasSuffix(thing, "s") {
		return thing + "es"
	}
	return thing + "s"
}
