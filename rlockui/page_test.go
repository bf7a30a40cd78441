package rlockui_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/internal/locktest"
	"github.com/go-rlock/rlock/rlockui"
)

var shots = flag.String("shots", "", "folder for screenshots of the pages")

// browser is a tab of Chromium, with the errors of its page.
type browser struct {
	context.Context
	t      *testing.T
	mu     sync.Mutex // guards the rest
	errors []string
}

// opened starts Chromium. Without it the test is skipped, or fails if RLOCK_REQUIRE_CHROMIUM is set.
func opened(t *testing.T) *browser {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		if os.Getenv("RLOCK_REQUIRE_CHROMIUM") != "" {
			t.Fatal("Chromium is not installed")
		}
		t.Skip("Chromium is not installed; RLOCK_REQUIRE_CHROMIUM=1 makes this a failure")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox)
	allocated, free := chromedp.NewExecAllocator(bg, options...)
	tab, end := chromedp.NewContext(allocated)
	b := &browser{Context: tab, t: t}
	t.Cleanup(func() {
		if err := chromedp.Cancel(tab); err != nil { // waits for the program
			t.Log(err)
		}
		end()
		free()
	})
	chromedp.ListenTarget(tab, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			b.errors = append(b.errors, e.ExceptionDetails.Error())
		case *log.EventEntryAdded: // violations of the policy
			if e.Entry.Level == log.LevelError && !strings.Contains(e.Entry.Text, "the server responded with a status of") {
				b.errors = append(b.errors, e.Entry.Text)
			}
		}
	})
	if err := chromedp.Run(tab); err != nil { // starts the program, which lasts as long as this context
		t.Fatal(err)
	}
	return b
}

func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, locktest.Patience)
	defer cancel()
	err := chromedp.Run(ctx, actions...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		b.t.Fatalf("errors of the page: %s", strings.Join(b.errors, "\n"))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// js returns the value of an expression.
func js[T any](b *browser, format string, args ...any) (v T) {
	b.t.Helper()
	b.run(chromedp.Evaluate(fmt.Sprintf(format, args...), &v))
	return v
}

func (b *browser) eventually(what, condition string) {
	b.t.Helper()
	locktest.Eventually(b.t, what, func() bool { return js[bool](b, "Boolean(%s)", condition) })
}

// view sets the size of the window, and light or dark.
func (b *browser) view(width int64, scheme string) {
	b.t.Helper()
	b.run(emulation.SetDeviceMetricsOverride(width, 800, 1, width < 500),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

func (b *browser) screenshot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	var png []byte
	b.run(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// contrasts returns the texts whose contrast with their background is below WCAG AA: 4.5, or 3 for large ones.
const contrasts = `(() => {
  const channel = c => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
  const rgb = s => s.match(/[\d.]+/g).map(Number);
  const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const hint = e.placeholder && !e.value;
    if (!own && !hint || !e.checkVisibility() || e.tagName === "NOSCRIPT") continue;
    const style = getComputedStyle(e, hint ? "::placeholder" : null);
    let back = [255, 255, 255];
    for (let p = e; p; p = p.parentElement) {
      const c = rgb(getComputedStyle(p).backgroundColor);
      if (c.length < 4 || c[3] > 0) { back = c; break; }
    }
    const ink = rgb(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const cover = (ink[3] ?? 1) * style.opacity;
    const a = light([0, 1, 2].map(i => cover * ink[i] + (1 - cover) * back[i])), z = light(back);
    const ratio = (Math.max(a, z) + .05) / (Math.min(a, z) + .05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) bad.push(e.tagName + " " + (e.placeholder || e.textContent).slice(0, 30) + " " + ratio.toFixed(2));
  }
  return bad;
})()`

// wraps reports whether the widest clock of a timeline needs more than one line.
const wraps = `(() => {
  const e = document.querySelector("#l-events time"), text = e.textContent, range = document.createRange();
  e.textContent = "10:28:09 PM";
  range.selectNodeContents(e);
  const lines = range.getClientRects().length;
  e.textContent = text;
  return lines > 1;
})()`

// arrows returns the number of arrows whose head has the color of their line, and the number of all.
const arrows = `(() => {
  const all = [...document.querySelectorAll("#graph svg > path")];
  const head = p => document.querySelector(p.getAttribute("marker-end").slice(4, -1) + " path");
  return [all.filter(p => getComputedStyle(head(p)).fill === getComputedStyle(p).stroke).length, all.length];
})()`

// A fleet with all that the pages can show.
func fleet(t *testing.T, b *locktest.Backend, s *site) {
	t.Helper()
	billing, reports := b.NewClient(t, rlock.WithLabel("billing")), b.NewClient(t, rlock.WithLabel("reports"))
	for i := range 12 {
		lease := locktest.MustLock(t, billing.NewLock(fmt.Sprintf("invoice:%d", 4100+i)))
		t.Cleanup(func() { _ = lease.Unlock(bg) })
	}
	for _, name := range []string{"<script>alert(1)</script>", "gnp.\u202eexe", "long:" + strings.Repeat("0123456789", 40)} {
		lease := locktest.MustLock(t, reports.NewLock(name))
		t.Cleanup(func() { _ = lease.Unlock(bg) })
	}
	shared := locktest.MustLock(t, reports.NewReadWriteLock("cache").Reader)
	t.Cleanup(func() { _ = shared.Unlock(bg) })
	accounts, ledger := locktest.MustLock(t, billing.NewFairLock("accounts")), locktest.MustLock(t, reports.NewPriorityLock("ledger"))
	t.Cleanup(func() { _ = accounts.Unlock(bg); _ = ledger.Unlock(bg) })
	forLedger, forAccounts := locktest.Begin(t, bg, billing.NewPriorityLock("ledger")), locktest.Begin(t, bg, reports.NewFairLock("accounts"))
	t.Cleanup(func() { _, _ = forLedger.GiveUp(), forAccounts.GiveUp() })
	gone, err := b.NewClient(t, rlock.WithLabel("crashed")).NewLock("orphan").TryLock(bg, rlock.WithLease(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gone.Unlock(bg) })
	key := "rlock:client:" + gone.HoldID()[:21]
	locktest.Eventually(t, "its key is written", func() bool { return s.rdb.Exists(bg, key).Val() == 1 })
	s.rdb.PExpire(bg, key, 4*time.Minute)
}

func TestPagesInChromium(t *testing.T) {
	b := opened(t)
	redis := locktest.OnMiniredis(t)
	s := open(t, redis, rlockui.Options{Interval: 500 * time.Millisecond, Title: "locks of the shop", Allow: func(*http.Request, rlockui.Write) bool { return true }})
	fleet(t, redis, s)
	b.view(1280, "light")
	b.run(chromedp.Navigate(s.URL + prefix))
	b.eventually("all locks are shown", `document.querySelectorAll("#rows tr").length === 19`)
	b.eventually("the cycle and the lost client are marked", `document.querySelector("#n-cycles").textContent === "1 cycle" && [...document.querySelectorAll("#rows .danger")].some(e => e.textContent === "client gone")`)
	if js[bool](b, `[...document.querySelectorAll("script")].some(e => e.textContent)`) {
		t.Error("a name became a script")
	}
	for _, name := range []string{"<script>alert(1)</script>", `gnp.\u202eexe`} {
		if !js[bool](b, `[...document.querySelectorAll("#rows a")].some(e => e.textContent === %q)`, name) {
			t.Errorf("no row of %q", name)
		}
	}
	// The slash leads to the search; what is typed there is searched for.
	b.run(chromedp.KeyEvent("/"))
	b.eventually("the search has the focus", `document.activeElement.id === "q"`)
	// The protocol sends the character apart from the key, so here it is typed too.
	b.run(chromedp.Evaluate(`document.querySelector("#q").value = ""`, nil), chromedp.KeyEvent("ledg"))
	b.eventually("one row is left", `document.querySelectorAll("#rows tr").length === 1`)
	b.run(chromedp.Evaluate(`document.querySelector("#q").value = ""; document.querySelector("#q").dispatchEvent(new Event("input"))`, nil))
	b.eventually("all are back", `document.querySelectorAll("#rows tr").length === 19`)
	// A row keeps the focus while events come in.
	b.run(chromedp.Evaluate(`document.querySelectorAll("#rows a")[3].focus(); window.before = last.read`, nil))
	b.eventually("two events later", `last.read > before + 1000`)
	if !js[bool](b, `document.activeElement === document.querySelectorAll("#rows a")[3]`) {
		t.Error("an event has taken the focus")
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.view(width, scheme)
			for _, hash := range []string{"#/", "#/waits", "#/clients", "#/nodes", "lock"} {
				if hash == "lock" {
					hash = js[string](b, `document.querySelector("#rows tr a[href]") && [...document.querySelectorAll("#rows a")].find(a => a.textContent === "accounts").getAttribute("href")`)
				}
				b.run(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", hash), nil))
				b.eventually("it is drawn", `last && document.querySelector("#status").textContent === "live" && (page !== "lock" || document.querySelector("#l-name").textContent === "accounts")`)
				if wide := js[int64](b, `document.documentElement.scrollWidth`); wide > width {
					t.Errorf("%s is %d pixels wide, in a window of %d", hash, wide, width)
				}
				if bad := js[[]string](b, "%s", contrasts); len(bad) > 0 {
					t.Errorf("%s, %s: contrasts %q", hash, scheme, bad)
				}
				switch hash {
				case "#/waits":
					if n := js[[]int](b, "%s", arrows); n[0] != n[1] || n[1] != 2 {
						t.Errorf("%s: %d of %d arrows have one color", scheme, n[0], n[1])
					}
				case "#/", "#/clients", "#/nodes":
				default:
					if js[bool](b, "%s", wraps) {
						t.Errorf("a clock wraps at a width of %d", width)
					}
				}
				b.screenshot(fmt.Sprintf("%s-%d-%s", scheme, width, strings.Trim(js[string](b, "page"), "#/")))
			}
		}
	}
}

func TestHoldIsEndedInChromium(t *testing.T) {
	b := opened(t)
	redis := locktest.OnMiniredis(t)
	s := open(t, redis, rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
	l := redis.NewClient(t).NewLock("stuck")
	lease := locktest.MustLock(t, l)
	b.run(chromedp.Navigate(s.URL + prefix))
	b.eventually("the lock is shown", `document.querySelector("#rows a")`)
	// By keyboard alone: the link, the button, the answer "keep it", and then the other.
	b.run(chromedp.Evaluate(`document.querySelector("#rows a").focus()`, nil), chromedp.KeyEvent("\r"))
	b.eventually("its page has the button", `document.querySelector("#l-holders button")`)
	press := func() {
		b.run(chromedp.Evaluate(`document.querySelector("#l-holders button").focus()`, nil), chromedp.KeyEvent("\r"))
	}
	press()
	b.eventually("the question is there", `document.querySelector("#sure").open && document.activeElement.id === "sure-no"`)
	b.run(chromedp.KeyEvent("\r"))
	b.eventually("it is closed", `!document.querySelector("#sure").open`)
	locktest.MustBeHeld(t, l)
	press()
	b.eventually("the question is there", `document.querySelector("#sure").open`)
	b.screenshot("dialog")
	b.run(chromedp.KeyEvent("\t"), chromedp.KeyEvent("\r"))
	b.eventually("the answer is shown", `document.querySelector("#l-result").textContent === "The hold was ended."`)
	locktest.MustBeFree(t, l)
	_ = lease.Unlock(bg)
}

func TestHiddenTabIsNoViewer(t *testing.T) {
	b := opened(t)
	redis := locktest.OnMiniredis(t)
	sent := count(redis)
	s := open(t, redis, rlockui.Options{})
	b.run(chromedp.Navigate(s.URL + prefix))
	b.eventually("it is live", `document.querySelector("#status").textContent === "live"`)
	hide := func(hidden bool) {
		b.run(chromedp.Evaluate(fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden), nil))
	}
	hide(true)
	locktest.Eventually(t, "the polls end", func() bool {
		before := sent.Load()
		time.Sleep(5 * interval)
		return sent.Load() == before
	})
	hide(false)
	before := sent.Load()
	b.eventually("it is live again", `document.querySelector("#status").textContent === "live"`)
	locktest.Eventually(t, "the polls begin", func() bool { return sent.Load() > before })
	b.run(page.Close())
	locktest.Eventually(t, "the polls end with the tab", func() bool {
		before := sent.Load()
		time.Sleep(5 * interval)
		return sent.Load() == before
	})
}
