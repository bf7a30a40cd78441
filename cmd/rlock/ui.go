package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rlock/rlock"
	"github.com/go-rlock/rlock/rlockui"
)

func newUI(a *app) *cobra.Command {
	var (
		address string
		writes  bool
	)
	cmd := &cobra.Command{
		Use: "ui [PATTERN]", Short: "Show the locks in a browser, live",
		Long: "Serves pages of the locks that are held, on this machine only: who holds what since when, who waits for whom, what was lost. The\n" +
			"URL that it prints has a token, without which no page is served. Programs mount the pages behind their own authentication: see\n" +
			"package rlockui.",
		Example: "  rlock ui\n  rlock ui --listen 127.0.0.1:8080 --writes 'orders:*'",
		Args:    counted(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := loopbackOnly(address); err != nil {
				return err
			}
			d, err := a.connect("")
			if err != nil {
				return err
			}
			defer d.close()
			// No limit for the first answer of Redis: nothing is sent before a page is open, and the pages show errors.
			ctx, _ := listen()
			opts := rlockui.Options{Pattern: strings.Join(args, ""), Redis: d.rdbs[0], Nodes: d.clients[1:]}
			if writes {
				opts.Allow = func(*http.Request, rlockui.Write) bool { return true }
			}
			return a.serveUI(ctx, address, d.clients[0], opts)
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:0", "`address` of this machine; port 0 is any that is free")
	cmd.Flags().BoolVar(&writes, "writes", false, "let the pages unlock a hold, and ask for its release")
	return cmd
}

// loopbackOnly refuses an address that other machines reach: the pages, and the token, are not encrypted.
func loopbackOnly(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return usage("--listen %s: an address such as 127.0.0.1:8080", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usage("--listen %s: not an address of this machine alone; a program can mount package rlockui elsewhere, behind its authentication", address)
	}
	return nil
}

// serveUI serves the pages until ctx ends.
func (a *app) serveUI(ctx context.Context, address string, client *rlock.Client, opts rlockui.Options) error {
	pages, err := rlockui.Handler(client, opts)
	if err != nil {
		return usage("%s", plain(err)) // the pattern
	}
	defer pages.Close()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return &failure{code: exitUnavailable, text: err.Error()}
	}
	token := rand.Text()
	server := &http.Server{Handler: behind(token, pages), ReadHeaderTimeout: 10 * time.Second}
	server.RegisterOnShutdown(func() { pages.Close() }) // ends the streams
	line(a.stdout, "http://%s/?token=%s", listener.Addr(), token)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
	case err := <-ended:
		return err
	}
	bounded, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if server.Shutdown(bounded) != nil {
		server.Close() // a request that hangs
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return context.Cause(ctx)
}

// tokenCookie has the token once the URL with it was opened. Its name has the port: a browser sends cookies of a host to all
// its ports.
func tokenCookie(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "rlock-ui-" + port
}

// behind serves pages to browsers that have opened the URL with the token once.
func behind(token string, pages http.Handler) http.Handler {
	right := func(given string) bool { return subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1 }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if given := r.URL.Query().Get("token"); given != "" && right(given) {
			http.SetCookie(w, &http.Cookie{Name: tokenCookie(r), Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			w.Header().Set("Referrer-Policy", "no-referrer")
			w.Header().Set("Cache-Control", "no-store")
			http.Redirect(w, r, "/", http.StatusSeeOther) // the token leaves the address bar
			return
		}
		if c, err := r.Cookie(tokenCookie(r)); err != nil || !right(c.Value) {
			http.Error(w, "open the URL that rlock ui has printed", http.StatusUnauthorized)
			return
		}
		pages.ServeHTTP(w, r)
	})
}
