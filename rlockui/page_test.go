package rlockui_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
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

// The tests share one Chromium; each has a tab. Without Chromium they are skipped, or fail if RLOCK_REQUIRE_CHROMIUM is set.
func TestPagesInChromium(t *testing.T) {
	program := chromium(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, b *browser)
	}{
		{"all pages", showsAllPages},
		{"a hold is ended", endsAHold},
		{"a hidden tab is no viewer", hiddenTabIsNoViewer},
		{"prefixes and proxies", worksBehindProxies},
		{"ten thousand locks", showsTenThousandLocks},
		{"a loss", showsALoss},
		{"an outage", showsAnOutage},
		{"writes of other sites", refusesOtherSites},
		{"pictures", drawsPictures},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newTab(t, program)) })
	}
}

// chromium starts the program.
func chromium(t *testing.T) context.Context {
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
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(patience(t)))
	allocated, free := chromedp.NewExecAllocator(bg, options...)
	ctx, end := chromedp.NewContext(allocated, chromedp.WithBrowserOption(chromedp.WithDialTimeout(patience(t))))
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil { // waits for the program
			t.Log(err)
		}
		end()
		free()
	})
	if err := chromedp.Run(ctx); err != nil { // starts the program, which lasts as long as this context
		t.Fatal(err)
	}
	return ctx
}

// newTab opens a tab, which is closed when the test ends.
func newTab(t *testing.T, program context.Context) *browser {
	t.Helper()
	tab, end := chromedp.NewContext(program)
	t.Cleanup(end)
	b := &browser{Context: tab, t: t}
	chromedp.ListenTarget(tab, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			b.errors = append(b.errors, e.ExceptionDetails.Error())
		case *log.EventEntryAdded: // violations of the policy
			isRefusal := strings.Contains(e.Entry.Text, "the server responded with a status of") || strings.Contains(e.Entry.Text, "ERR_BLOCKED_BY_RESPONSE")
			if e.Entry.Level == log.LevelError && !isRefusal {
				b.errors = append(b.errors, e.Entry.Text)
			}
		}
	})
	if err := chromedp.Run(tab); err != nil { // opens it, for as long as its context lasts
		t.Fatal(err)
	}
	return b
}

// patience is how long anything may take here: as long as the test. In the background of a busy machine the browser, the pages and
// Redis get a hundredth of a processor.
func patience(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return time.Hour
	}
	return time.Until(deadline) - 10*time.Second
}

// eventually waits for a condition, with that patience.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	most := patience(t)
	for began := time.Now(); !ok(); locktest.Pause(began) {
		if time.Since(began) > most {
			t.Fatalf("waited too long until %s", what)
		}
	}
}

func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, patience(b.t))
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
	eventually(b.t, what, func() bool { return js[bool](b, "Boolean(%s)", condition) })
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
	eventually(t, "its key is written", func() bool { return s.rdb.Exists(bg, key).Val() == 1 })
	s.rdb.PExpire(bg, key, 4*time.Minute)
}

func showsAllPages(t *testing.T, b *browser) {
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
			for _, name := range []string{"locks", "waits", "clients", "nodes", "lock"} {
				hash := "#/" + name
				if name == "lock" {
					hash = js[string](b, `[...document.querySelectorAll("#rows a")].find(a => a.textContent === "accounts").getAttribute("href")`)
				}
				b.run(chromedp.Evaluate(fmt.Sprintf("location.hash = %q", hash), nil))
				b.eventually("it is drawn", fmt.Sprintf(`page === %q && document.querySelector("#status").textContent === "live" && (page !== "lock" || document.querySelector("#l-name").textContent === "accounts")`, name))
				if wide := js[int64](b, `document.documentElement.scrollWidth`); wide > width {
					t.Errorf("%s is %d pixels wide, in a window of %d", name, wide, width)
				}
				if bad := js[[]string](b, "%s", contrasts); len(bad) > 0 {
					t.Errorf("%s, %s: contrasts %q", name, scheme, bad)
				}
				switch name {
				case "waits":
					var n []int
					// A client that has to subscribe again does not wait in between, as far as Redis shows it.
					eventually(t, "both waits are drawn", func() bool { n = js[[]int](b, "%s", arrows); return n[1] == 2 })
					if n[0] != n[1] {
						t.Errorf("%s: %d of %d arrows have one color", scheme, n[0], n[1])
					}
				case "lock":
					if js[bool](b, "%s", wraps) {
						t.Errorf("a clock wraps at a width of %d", width)
					}
				}
				b.screenshot(fmt.Sprintf("%s-%d-%s", scheme, width, name))
			}
		}
	}
}

func endsAHold(t *testing.T, b *browser) {
	redis := locktest.OnMiniredis(t)
	s := open(t, redis, rlockui.Options{Allow: func(*http.Request, rlockui.Write) bool { return true }})
	l := redis.NewClient(t).NewLock("stuck")
	lease := locktest.MustLock(t, l)
	b.run(chromedp.Navigate(s.URL + prefix))
	b.eventually("the lock is shown", `document.querySelector("#rows a")`)
	// By keyboard alone: the link, the button, the answer "keep it", and then the other.
	b.press("#rows a")
	b.eventually("its page has the button", `document.querySelector("#l-holders button")`)
	b.press("#l-holders button")
	b.eventually("the question is there", `document.querySelector("#sure").open && document.activeElement.id === "sure-no"`)
	b.run(chromedp.KeyEvent("\r"))
	b.eventually("it is closed", `!document.querySelector("#sure").open`)
	locktest.MustBeHeld(t, l)
	b.press("#l-holders button")
	b.eventually("the question is there", `document.querySelector("#sure").open`)
	b.screenshot("dialog")
	b.run(chromedp.KeyEvent("\t"), chromedp.KeyEvent("\r"))
	b.eventually("the answer is shown", `document.querySelector("#l-result").textContent === "The hold was ended."`)
	locktest.MustBeFree(t, l)
	_ = lease.Unlock(bg)
}

func hiddenTabIsNoViewer(t *testing.T, b *browser) {
	redis := locktest.OnMiniredis(t)
	sent := count(redis)
	s := open(t, redis, rlockui.Options{})
	b.run(chromedp.Navigate(s.URL + prefix))
	b.eventually("it is live", `document.querySelector("#status").textContent === "live"`)
	hide := func(hidden bool) {
		b.run(chromedp.Evaluate(fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden), nil))
	}
	hide(true)
	eventually(t, "the polls end", func() bool {
		before := sent.Load()
		time.Sleep(5 * interval)
		return sent.Load() == before
	})
	hide(false)
	before := sent.Load()
	b.eventually("it is live again", `document.querySelector("#status").textContent === "live"`)
	eventually(t, "the polls begin", func() bool { return sent.Load() > before })
	b.run(page.Close())
	eventually(t, "the polls end with the tab", func() bool {
		before := sent.Load()
		time.Sleep(5 * interval)
		return sent.Load() == before
	})
}

// press presses a link or a button with a key: it may move until a click is there.
func (b *browser) press(selector string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(fmt.Sprintf("document.querySelector(%q).focus()", selector), nil), chromedp.KeyEvent("\r"))
}

// mustBeTheSamePage fails the test if the page was loaded again since visit.
func (b *browser) mustBeTheSamePage() {
	b.t.Helper()
	if !js[bool](b, "window.isMarked === true") {
		b.t.Error("the page was loaded again")
	}
}

// visit opens a page, and marks it.
func (b *browser) visit(url string) {
	b.t.Helper()
	b.run(chromedp.Navigate(url), chromedp.Evaluate("window.isMarked = true", nil))
}

func worksBehindProxies(t *testing.T, b *browser) {
	redis := locktest.OnMiniredis(t)
	lease := locktest.MustLock(t, redis.NewClient(t).NewLock("far away"))
	t.Cleanup(func() { locktest.MustUnlock(t, lease) })
	pages := pagesOf(t, redis.NewClient(t), rlockui.Options{Interval: interval, Allow: func(*http.Request, rlockui.Write) bool { return true }})
	app := http.NewServeMux()
	app.Handle("/a/b/", pages)
	mounted, bare := &site{t: t, pages: pages}, &site{t: t, pages: pages}
	mounted.serve(app)
	bare.serve(pages)
	proxy := func(s *site) http.Handler {
		to, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	}
	keeps, strips := httptest.NewServer(proxy(mounted)), httptest.NewServer(http.StripPrefix("/a/b", proxy(bare)))
	for _, front := range []*httptest.Server{keeps, strips} {
		t.Cleanup(func() {
			front.CloseClientConnections() // ends the streams
			front.Close()
		})
	}
	for what, address := range map[string]string{
		"no proxy": mounted.URL + "/a/b/", "no proxy, and no slash": mounted.URL + "/a/b",
		"a proxy that keeps the prefix": keeps.URL + "/a/b/", "a proxy that keeps the prefix, and no slash": keeps.URL + "/a/b",
		"a proxy that strips the prefix": strips.URL + "/a/b/",
	} {
		b.visit(address)
		b.eventually(what+": the lock is shown", `document.querySelector("#status").textContent === "live" && document.querySelector("#rows a")?.textContent === "far away"`)
		b.press("#rows a")
		b.eventually(what+": its page is shown", `document.querySelector("#l-name").textContent === "far away" && !document.querySelector("#ask").hidden`)
		b.press("#ask")
		b.eventually(what+": the write is done", `document.querySelector("#l-result").textContent === "The holders were asked. Each decides."`)
		b.mustBeTheSamePage()
	}
}

func showsTenThousandLocks(t *testing.T, b *browser) {
	const locks = 10_000
	redis := locktest.OnServer(t)
	s := open(t, redis, rlockui.Options{})
	put(t, s, locks)
	b.visit(s.URL + prefix)
	// A poll that takes longer than a minute has failed, and nine minutes of rest follow. Other pages have no rest behind them.
	eventually(t, "a poll succeeds", func() bool {
		if js[bool](b, `Boolean(last && last.error)`) {
			s = open(t, redis, rlockui.Options{})
			b.visit(s.URL + prefix)
		}
		return js[bool](b, `Boolean(last && last.read)`)
	})
	b.eventually("the number and the first rows are shown", fmt.Sprintf(`document.querySelector("#matched").textContent === "%d locks, the first 200 are shown." && document.querySelectorAll("#rows tr").length === 200`, locks))
	for shown := 400; shown <= 1000; shown += 200 {
		b.press("#more")
		b.eventually(fmt.Sprintf("%d rows are shown", shown), fmt.Sprintf(`document.querySelectorAll("#rows tr").length === %d`, shown))
	}
	b.eventually("there are no more", `document.querySelector("#more").hidden`)
	// A row that stays keeps its element, also among a thousand.
	b.run(chromedp.Evaluate(`window.kept = [...document.querySelectorAll("#rows tr")]; window.before = last; connect()`, nil))
	b.eventually("another event is shown", `last !== before`)
	if n := js[int](b, `kept.filter((tr, i) => tr === document.querySelectorAll("#rows tr")[i]).length`); n != 1000 {
		t.Errorf("%d of 1000 rows have stayed", n)
	}
	b.run(chromedp.Evaluate(`document.querySelector("#q").focus()`, nil), chromedp.KeyEvent("LOCK-09999"))
	b.eventually("the search finds one", `document.querySelector("#matched").textContent === "1 lock." && document.querySelector("#rows").textContent.startsWith("lock-09999") && document.querySelectorAll("#rows tr").length === 1`)
	b.run(chromedp.Evaluate(`document.querySelector("#q").value = "lock-0999"; document.querySelector("#q").dispatchEvent(new Event("input"))`, nil))
	b.eventually("the search finds ten", `document.querySelector("#matched").textContent === "10 locks." && document.querySelectorAll("#rows tr").length === 10`)
	b.mustBeTheSamePage()
}

func showsALoss(t *testing.T, b *browser) {
	redis := locktest.OnMiniredis(t)
	s := open(t, redis, rlockui.Options{})
	for _, name := range []string{"lost", "kept"} {
		lease, err := redis.NewClient(t).NewLock(name).TryLock(bg, rlock.WithLease(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lease.Unlock(bg) })
	}
	b.visit(s.URL + prefix)
	b.eventually("both are shown", `document.querySelectorAll("#rows tr").length === 2`)
	b.run(chromedp.Evaluate(`[...document.querySelectorAll("#rows a")].find(e => e.textContent === "lost").click()`, nil))
	b.eventually("the timeline begins", `document.querySelector("#l-name").textContent === "lost" && document.querySelectorAll("#l-events li").length === 1`)
	// The lease runs out only when the page has shown that little of it is left, however late that is.
	eventually(t, "the rest is shown", func() bool {
		s.rdb.PExpire(bg, "lost", locktest.Ample(2*time.Second))
		return js[bool](b, `last.lock && last.lock.ends < last.now + 60000`)
	})
	b.eventually("the loss is shown", `document.querySelector("#l-events li").className === "lost" && document.querySelector("#l-events li").textContent.includes("has run out")`)
	b.eventually("it is free", `document.querySelector("#l-facts").textContent.includes("Statefree") && !document.querySelector("#l-holders li")`)
	b.press(`#lock a[href="#/"]`)
	b.eventually("one row is left", `document.querySelectorAll("#rows tr").length === 1 && document.querySelector("#rows a").textContent === "kept"`)
	b.eventually("the loss is counted", `document.querySelector("#sums").textContent.endsWith("losses seen1")`)
	b.mustBeTheSamePage()
}

func showsAnOutage(t *testing.T, b *browser) {
	redis := locktest.OnMiniredis(t)
	lease := locktest.MustLock(t, redis.NewClient(t).NewLock("kept"))
	t.Cleanup(func() { locktest.MustUnlock(t, lease) })
	s := open(t, redis, rlockui.Options{}, rlock.WithCommandTimeout(locktest.Ample(time.Second)))
	b.visit(s.URL + prefix)
	live := `document.querySelector("#status").textContent === "live" && document.querySelector("#error").hidden && document.querySelectorAll("#rows tr").length === 1`
	b.eventually("the lock is shown", live)
	redis.Mini.Close()
	b.eventually("the outage is shown, with what is known", `document.querySelector("#status").textContent === "no answer from Redis" && document.querySelector("#status").className === "bad" &&
		document.querySelector("#error").checkVisibility() && document.querySelector("#error").textContent.startsWith("Redis could not be read since ") && document.querySelector("#rows a").textContent === "kept"`)
	if err := redis.Mini.Restart(); err != nil {
		t.Fatal(err)
	}
	b.eventually("it is over", live)
	b.mustBeTheSamePage()
	if lost := js[int](b, "last.lost"); lost != 0 {
		t.Errorf("%d losses", lost)
	}
}

// noted notes the status of an answer.
type noted struct {
	http.ResponseWriter
	status chan<- int
}

func (n noted) WriteHeader(status int) {
	n.status <- status
	n.ResponseWriter.WriteHeader(status)
}

// A page of another site, or of another port of this one, sends what the page of the lock would send.
func refusesOtherSites(t *testing.T, b *browser) {
	redis := locktest.OnMiniredis(t)
	s := &site{t: t, rdb: redis.Client(t)}
	s.pages = pagesOf(t, redis.NewClient(t), rlockui.Options{Interval: interval, Redis: s.rdb, Allow: func(*http.Request, rlockui.Write) bool { return true }})
	status := make(chan int, 100)
	s.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w = noted{w, status}
		}
		s.pages.ServeHTTP(w, r)
	}))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>another page</title><link rel=icon href=data:,>"))
	}))
	t.Cleanup(other.Close)
	l := redis.NewClient(t).NewLock("wanted")
	lease := locktest.MustLock(t, l)
	r := s.held("wanted")
	body := fmt.Sprintf(`{"action":"force-unlock","lock":%q,"hold":%q}`, r.ID, r.Holders[0].Ref)
	to := s.URL + prefix + "write"
	send := func(options string) string {
		return fmt.Sprintf(`window.result = ""; fetch(%q, {method: "POST", body: %q, %s}).then(r => result = r.type + " " + r.status, e => result = e.name); 0`, to, body, options)
	}
	refused := func(what string) {
		t.Helper()
		if got := <-status; got != http.StatusForbidden {
			t.Errorf("%s: status %d", what, got)
		}
		locktest.MustBeHeld(t, l)
	}
	for what, address := range map[string]string{"another port": other.URL, "another site": strings.Replace(other.URL, "127.0.0.1", "localhost", 1)} {
		b.run(chromedp.Navigate(address), chromedp.Evaluate(send(`mode: "no-cors", credentials: "include"`), nil))
		b.eventually("the answer cannot be read", `result === "TypeError"`)
		refused(what + ", fetch")
		// The body of a form has an "=" between the name and the value.
		form := fmt.Sprintf(`
			const form = document.createElement("form"), input = document.createElement("input");
			Object.assign(form, {method: "POST", enctype: "text/plain", action: %q});
			[input.name, input.value] = [%q, '"}'];
			form.append(input);
			document.body.append(form);
			form.submit()`, to, strings.TrimSuffix(body, "}")+`,"x":"`)
		b.run(chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := chromedp.RunResponse(ctx, chromedp.Evaluate(form, nil))
			return err
		}))
		refused(what + ", form")
		b.eventually("the reason is shown", `document.body.textContent.includes("the request comes from another site")`)
	}
	// The page of the lock may: all else was right.
	b.visit(s.URL + prefix)
	b.run(chromedp.Evaluate(send(`headers: {"Content-Type": "application/json"}`), nil))
	b.eventually("the hold is ended", `result === "basic 200"`)
	locktest.MustBeFree(t, l)
	_ = lease.Unlock(bg)
}

// drawsPictures draws the pictures of docs/ui.md: a shop in which two clients wait for each other.
func drawsPictures(t *testing.T, b *browser) {
	if *shots == "" {
		t.Skip("only with -shots")
	}
	redis := locktest.OnMiniredis(t)
	s := open(t, redis, rlockui.Options{Title: "locks of the shop"})
	client := func(label string) *rlock.Client {
		return redis.NewClient(t, rlock.WithLabel(label), rlock.WithWatchdogLease(30*time.Second))
	}
	hold := func(l rlock.Locker) {
		lease := locktest.MustLock(t, l)
		t.Cleanup(func() { _ = lease.Unlock(bg) })
	}
	billing, reports := client("billing"), client("reports")
	hold(billing.NewFairLock("accounts"))
	hold(client("search").NewReadWriteLock("catalog").Reader)
	hold(client("web").NewReadWriteLock("catalog").Reader)
	hold(billing.NewLock("invoices:2026-11"))
	hold(reports.NewPriorityLock("ledger"))
	hold(client("checkout").NewFencedLock("stock:4711"))
	leads, err := client("scheduler").NewElection("cron").Campaign(bg, "scheduler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leads.Unlock(bg) })
	for _, l := range []rlock.Locker{reports.NewFairLock("accounts"), billing.NewPriorityLock("ledger")} {
		locktest.Begin(t, bg, l)
	}
	b.view(1100, "light")
	b.run(emulation.SetDeviceMetricsOverride(1100, 100, 1, false)) // a picture is as high as its page
	for name, hash := range map[string]string{"ui": "#/", "ui-waits": "#/waits"} {
		b.visit(s.URL + prefix + hash)
		b.eventually("all is shown", `document.querySelector("#status").textContent === "live" && last.held === 6 && last.waits.length === 2 && last.cycles.length === 1 && last.clients.every(c => c.who)`)
		b.screenshot(name)
	}
}
