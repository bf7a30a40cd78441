//go:build !js

package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/go-rlock/rlock/playground/world"
)

var shots = flag.String("shots", "", "folder for screenshots of the scenarios that are played")

// built builds the page, and returns its address.
func built(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("./build", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	srv := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(srv.Close)
	return srv.URL
}

// browser is a tab of Chromium, with the errors of its page.
type browser struct {
	context.Context
	url    string     // of the page
	mu     sync.Mutex // guards the rest
	errors []string
}

// The tests share one Chromium. Without Chromium they are skipped, or fail if RLOCK_REQUIRE_CHROMIUM is set.
func TestPageInChromium(t *testing.T) {
	b := opened(t)
	b.url = built(t)
	t.Run("real time", func(t *testing.T) { runsInRealTime(t, b) })
	b.setClock(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, b *browser)
	}{
		{"scenarios", playsScenarios},
		{"a reader breaks it", readerBreaksIt},
		{"a phone", fitsAPhone},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b) })
	}
}

// opened starts Chromium.
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
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(patience(t)))
	allocated, free := chromedp.NewExecAllocator(context.Background(), options...)
	tab, end := chromedp.NewContext(allocated, chromedp.WithBrowserOption(chromedp.WithDialTimeout(patience(t))))
	t.Cleanup(func() {
		if err := chromedp.Cancel(tab); err != nil { // waits for the program
			t.Log(err)
		}
		end()
		free()
	})
	b := &browser{Context: tab}
	chromedp.ListenTarget(tab, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			b.errors = append(b.errors, e.ExceptionDetails.Error())
		case *cdpruntime.EventConsoleAPICalled:
			for _, arg := range e.Args { // the program prints its panics
				b.errors = append(b.errors, string(arg.Value))
			}
		}
	})
	if err := chromedp.Run(tab); err != nil { // starts the program, which lasts as long as this context
		t.Fatal(err)
	}
	return b
}

// patience is how long the browser may take for anything: as long as the test. In the background of a busy machine it gets
// a hundredth of a processor.
func patience(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return time.Hour
	}
	return time.Until(deadline) - 10*time.Second
}

func (b *browser) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b, patience(t))
	defer cancel()
	err := chromedp.Run(ctx, actions...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		t.Fatalf("errors of the page: %s", strings.Join(b.errors, "\n"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// clock is a clock for the page, which goes on only in until: to the next timer, when the page has nothing to do. So what the
// page shows depends on no machine's speed, nor on when a test looks at it.
const clock = `(() => {
	const RealDate = Date, later = setTimeout, began = Date.now();
	const timers = new Map(); // by number, in the order in which they were set
	let now = 0, number = 0; // milliseconds since the page was opened; the latest timer
	Date = class extends RealDate {
		constructor(...args) { super(...(args.length ? args : [began + now])); }
		static now() { return began + now; }
	};
	performance.now = () => now;
	setTimeout = (f, ms = 0, ...args) => {
		timers.set(++number, { at: now + Math.max(0, ms), run: () => f(...args) });
		return number;
	};
	clearTimeout = (id) => timers.delete(id);
	requestAnimationFrame = (f) => setTimeout(() => f(now), 16);
	window.until = (selector) => new Promise((resolve, reject) => {
		const { port1, port2 } = new MessageChannel();
		port1.onmessage = () => {
			if (document.querySelector(selector)) return resolve();
			if (now > 120000) return reject(new Error("in two minutes of the page there is no " + selector + "\n" + document.querySelector("main").innerText));
			let next;
			for (const [id, t] of timers) if (!next || t.at < timers.get(next).at) next = id;
			if (next) {
				const { at, run } = timers.get(next);
				timers.delete(next);
				now = Math.max(now, at);
				run();
				port2.postMessage(0);
			} else later(() => port2.postMessage(0), 10); // the program is being loaded
		};
		port2.postMessage(0);
	});
})()`

// setClock gives the page the clock, whenever it is loaded from now on.
func (b *browser) setClock(t *testing.T) {
	t.Helper()
	b.run(t, chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(clock).Do(ctx)
		return err
	}))
}

// until lets the time of the page go on until it has an element.
func until(selector string) chromedp.Action {
	return chromedp.Evaluate(fmt.Sprintf("until(%q)", selector), nil, func(p *cdpruntime.EvaluateParams) *cdpruntime.EvaluateParams { return p.WithAwaitPromise(true) })
}

// load loads the page again, with a scenario or with #play.
func (b *browser) load(name string) chromedp.Action {
	return chromedp.Tasks{chromedp.Navigate(b.url + "/#" + name), chromedp.Reload()}
}

// count returns how many elements a selector matches.
func (b *browser) count(t *testing.T, selector string) (n int) {
	t.Helper()
	b.run(t, chromedp.Evaluate(fmt.Sprintf("document.querySelectorAll(%q).length", selector), &n))
	return n
}

func (b *browser) text(t *testing.T, selector string) (text string) {
	t.Helper()
	b.run(t, chromedp.Evaluate(fmt.Sprintf("document.querySelector(%q).textContent", selector), &text))
	return text
}

func (b *browser) screenshot(t *testing.T, name string) {
	t.Helper()
	if *shots == "" {
		return
	}
	var png []byte
	b.run(t, chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// play opens the link to a scenario, and waits until it is over. Its claims have to be true.
func (b *browser) play(t *testing.T, name string) {
	t.Helper()
	b.run(t, b.load(name), until(isOver))
	b.claims(t, name)
}

// isOver is the selector of a scenario that has come to its end.
const isOver = `#scenario[data-over="verdicts"]`

// claims checks those of a scenario that is over.
func (b *browser) claims(t *testing.T, name string) {
	t.Helper()
	s, ok := world.Find(name)
	if !ok {
		t.Fatalf("there is no scenario %q", name)
	}
	if got := b.text(t, "#title"); got != s.Title {
		t.Errorf("the page shows %q", got)
	}
	if n := b.count(t, "#claims li.true"); n != len(s.Claim) || n < 3 {
		t.Errorf("%s: %d of %d claims are true:\n%s\n%s", name, n, len(s.Claim), b.text(t, "#claims"), b.text(t, "#log"))
	}
}

// misdrawn returns how the timeline differs from what is wanted: a number of marks or bars that can be seen for each selector.
func (b *browser) misdrawn(t *testing.T, want map[string]int) (wrong []string) {
	t.Helper()
	for selector, n := range want {
		var got int
		b.run(t, chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll("#chart " + %q)].filter((e) => {
			const { width, height } = e.getBoundingClientRect();
			return width > 0 && height > 0 && e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
		}).length`, selector), &got))
		if got != n {
			wrong = append(wrong, fmt.Sprintf("the timeline has %d of %s, not %d", got, selector, n))
		}
	}
	return wrong
}

var (
	fenceDrawn = map[string]int{
		`.bar.held[data-client="A"]`: 1, `.bar.held[data-client="B"]`: 1, `.bar.waiting[data-client="B"]`: 1,
		`.bar.over[data-client="A"]`: 1, `.bar.over[data-client="B"]`: 0,
		`.bar.paused[data-client="A"]`: 1, `[data-kind="lost"][data-client="A"][data-cause="ErrExpired"]`: 1,
		`[data-kind="refused"][data-client="A"]`: 1, `[data-kind="lost-update"]`: 0, `[data-kind="lost"][data-client="B"]`: 0,
	}
	failoverDrawn = map[string]int{
		`.bar.held[data-client="A"]`: 1, `.bar.held[data-client="B"]`: 1, `[data-kind="flushed"]`: 1, `[data-kind="two-owners"]`: 2,
		`[data-kind="lost"][data-client="A"]`: 1, `[data-kind="refused"]`: 0, `[data-kind="lost-update"][data-client="C"]`: 0,
	}
)

// act is the selector of a button.
func act(act, client string) string {
	return fmt.Sprintf(`button[data-act=%q][aria-label$="client %s"]:enabled`, act, client)
}

// mark is the selector of a mark or a bar of the timeline.
func mark(kind, client string) string {
	return fmt.Sprintf(`#chart [data-kind=%q][data-client=%q]`, kind, client)
}

// A program that waits for the lock gets it, however slow the machine is. The claims of a scenario are about seconds, so
// they are for the night, when nothing else runs.
func runsInRealTime(t *testing.T, b *browser) {
	if os.Getenv("RLOCK_NIGHTLY") == "1" {
		b.run(t, b.load("failover"), chromedp.WaitReady(isOver, chromedp.ByQuery))
		b.claims(t, "failover")
	}
	b.run(t, b.load("play"), chromedp.Click(act("lock", "A"), chromedp.ByQuery), chromedp.WaitReady(mark("held", "A"), chromedp.ByQuery))
}

// playsScenarios plays the scenarios by their links, and reads the timeline of two.
func playsScenarios(t *testing.T, b *browser) {
	for _, s := range world.Scenarios {
		b.play(t, s.Name)
		b.screenshot(t, s.Name)
		switch s.Name {
		case "fence":
			for _, wrong := range b.misdrawn(t, fenceDrawn) {
				t.Error(wrong)
			}
		case "failover":
			for _, wrong := range b.misdrawn(t, failoverDrawn) {
				t.Error(wrong)
			}
			if b.count(t, `#chart [data-kind="lost-update"]`) == 0 {
				t.Error("the timeline shows no lost update")
			}
			b.run(t, chromedp.Evaluate(`document.querySelector("#chart .bar.held").style.display = "none"`, nil))
			if len(b.misdrawn(t, failoverDrawn)) == 0 {
				t.Error("a bar that is hidden is not missed")
			}
		case "paused": // without a fence
			if len(b.misdrawn(t, fenceDrawn)) == 0 {
				t.Error("the timeline shows a fence that is off")
			}
		}
	}
}

// The site must not be built without the page, or with one that is too large.
func TestBuildFailsWithoutGoAndForALargeProgram(t *testing.T) {
	small := exec.Command("./build", t.TempDir())
	small.Env = append(os.Environ(), "PLAYGROUND_LARGEST=2000000")
	if out, err := small.CombinedOutput(); err == nil || !strings.Contains(string(out), "2000000 are the bound") {
		t.Errorf("%v\n%s", err, out)
	}
	tools := t.TempDir() // what build calls, without Go
	for _, name := range []string{"bash", "env", "mkdir", "dirname", "cp", "chmod", "gzip", "wc"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	without := exec.Command("./build", t.TempDir())
	without.Env = []string{"PATH=" + tools}
	if out, err := without.CombinedOutput(); err == nil || !strings.Contains(string(out), "go: command not found") {
		t.Errorf("%v\n%s", err, out)
	}
}

// readerBreaksIt presses buttons, with the keyboard too.
func readerBreaksIt(t *testing.T, b *browser) {
	press := func(what, client string) chromedp.Action {
		return chromedp.Tasks{until(act(what, client)), chromedp.Click(act(what, client), chromedp.ByQuery)}
	}
	shows := func(kind, client string) chromedp.Action { return until(mark(kind, client)) }
	b.run(t, b.load("play"), press("lock", "A"), shows("accepted", "A"))
	b.run(t, press("lock", "C"), shows("waiting", "C"), press("kill", "A"), shows("held", "C"), shows("accepted", "C"))
	b.run(t, until(act("unlock", "C")), chromedp.Focus(act("unlock", "C"), chromedp.ByQuery), chromedp.KeyEvent("\r"), until(`#log li[data-kind="released"]`))
	if log := b.text(t, "#log"); !strings.Contains(log, "A is killed.") || !strings.Contains(log, "C has released the lock.") {
		t.Error(log)
	}
	b.run(t, press("start", "A"), press("lose-reply", "A"), press("lock", "A"), shows("retried", "A"))
}

// fitsAPhone finds nothing that is wider than a phone, and no text whose contrast is too low, in either scheme.
func fitsAPhone(t *testing.T, b *browser) {
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{390, 1200} {
			name := fmt.Sprintf("%s-%d", scheme, width)
			b.run(t,
				emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
				emulation.SetDeviceMetricsOverride(width, 844, 1, width < 500))
			b.play(t, "failover")
			var wide int64
			var faint []string
			b.run(t, chromedp.Evaluate(`document.documentElement.scrollWidth`, &wide), chromedp.Evaluate(faintTexts, &faint))
			if wide > width {
				t.Errorf("%s: the page is %d wide", name, wide)
			}
			if len(faint) > 0 {
				t.Errorf("%s: contrast below 4.5: %q", name, faint)
			}
			b.screenshot(t, name)
		}
	}
	var faint []string
	b.run(t, chromedp.Evaluate(`document.body.style.color = "#555"`, nil), chromedp.Evaluate(faintTexts, &faint))
	if len(faint) == 0 {
		t.Error("gray text on black is not found to be faint")
	}
}

// faintTexts returns texts whose contrast is below what WCAG AA wants of small text. Disabled buttons are exempt.
const faintTexts = `(() => {
	const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { c: m.slice(0, 3), a: m[3] ?? 1 }; };
	const luminance = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const b = rgb(getComputedStyle(e).backgroundColor); if (b.a > 0) return b.c; } return rgb(getComputedStyle(document.documentElement).backgroundColor).c; };
	const faint = [];
	const check = (e, ink, paper) => {
		const [a, b] = [luminance(ink), luminance(paper)];
		if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) faint.push(e.textContent);
	};
	for (const e of document.querySelectorAll("body *:not(script)")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || e.matches(":disabled, title") || !e.getClientRects().length) continue;
		const disc = e.matches("svg text.in") && e.parentElement.querySelector("circle");
		if (disc) check(e, rgb(getComputedStyle(e).fill).c, rgb(getComputedStyle(disc).fill).c);
		else check(e, rgb(e.closest("svg") ? getComputedStyle(e).fill : getComputedStyle(e).color).c, behind(e.closest("svg")?.parentElement ?? e));
	}
	return faint;
})()`
