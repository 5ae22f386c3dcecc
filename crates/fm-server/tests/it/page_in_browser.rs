//! The page as people meet it: in a browser.

use std::sync::Arc;

use fm_engine::{
    generate::{Event, FinishReason},
    schedule::{Job, Refused, Update},
};
use fm_server::Door;
use fm_text::Channel;
use serde_json::Value;

use crate::{
    browser::{Browser, ENTER, ESCAPE, Jobs, SHIFT, UP, browser},
    endings::{Script, generated, scripted},
    harness::{Running, start, start_tight, start_with, until},
};

/// A page whose questions the test answers itself. The browser goes before its server: a script of
/// jobs never closes, and who watches would stay.
pub(crate) fn page_of_jobs() -> Option<(Running, Browser, Jobs)> {
    let jobs = Jobs::default();
    let server = scripted(Script::Keep(Arc::clone(&jobs)));
    let browser = browser()?;
    browser.open(server.at);
    browser.until("document.querySelector('#model').textContent === 'demo'");
    Some((server, browser, jobs))
}

pub(crate) fn take(jobs: &Jobs) -> Job {
    until(|| !jobs.lock().unwrap().is_empty());
    let mut job = jobs.lock().unwrap().remove(0);
    let _ = (job.listener)(Update::Started);
    job
}

pub(crate) fn say(job: &mut Job, channel: Channel, text: &str) {
    assert!((job.listener)(Update::Event(Event::Text(channel, text))).is_continue());
}

pub(crate) fn end(job: &mut Job) {
    let done = generated(FinishReason::Stop, Vec::new());
    let _ = (job.listener)(Update::Done(Box::new(done)));
}

pub(crate) fn answer(jobs: &Jobs, text: &str) -> Job {
    let mut job = take(jobs);
    say(&mut job, Channel::Answer, text);
    end(&mut job);
    job
}

pub(crate) const IDLE: &str = "document.querySelector('#send').textContent === 'Send'";

/// Watches the colours of the map but those of experts that lie still, in memory or on disk.
const GLOW: &str = r#"
    const still = ["absent", "resident"].map((kind) => getComputedStyle(document.querySelector(`.legend .${kind}`)).backgroundColor);
    const canvas = document.querySelector(".heatmap canvas");
    window.glowed = new Set();
    setInterval(() => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const cell = canvas.width / 32;
      let glowing = 0;
      for (let expert = 0; expert < 256; expert++) {
        const [x, y] = [(expert % 32) + 0.5, Math.floor(expert / 32) + 0.5].map((at) => Math.floor(at * cell));
        const at = 4 * (y * canvas.width + x);
        const colour = `rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`;
        if (still.includes(colour)) continue;
        glowing++;
        window.glowed.add(expert);
      }
      window.glowing = glowing;
      window.fastest = Math.max(window.fastest ?? 0, parseFloat(document.querySelector(".speed.decode b").textContent));
    }, 50);
"#;

#[test]
fn the_demonstration_model_answers_and_its_experts_light_up() {
    let server = start(1);
    let Some(browser) = browser() else { return };
    browser.open(server.at);
    browser.until("document.querySelector('.heatmap canvas')?.ariaLabel?.includes(' 0 of 256')");
    browser.run(GLOW);
    assert_eq!(browser.run("return [...window.glowed]"), serde_json::json!([]));
    browser.press(&format!("Write a story about a robot who loves music.{ENTER}"));
    browser.until("document.querySelector('.answer .facts')?.textContent.includes('tok/s')");
    assert!(browser.text(".answer .markdown").len() > 100);
    assert!(browser.text(".answer .facts").contains("hits"), "{}", browser.text(".answer .facts"));
    // Who is used and read glows, and then it fades.
    browser.until("window.glowed.size > 3 && window.glowing === 0");
    browser.until("!document.querySelector('.heatmap canvas').ariaLabel.includes(' 0 of 256')");
    browser.until("window.fastest > 0");
    let memory = browser.text(".meter");
    assert!(memory.contains("of 300 MB"), "{memory}");
    let meters = browser.text(".meters");
    assert!(meters.contains("of 25.00 GB/s"), "{meters}");
    assert!(meters.contains("GB/s, memory holds all experts"), "{meters}");
}

/// Collects the experts that have the colour of those who were evicted, or nearly.
const EVICTED: &str = r#"
    const canvas = document.querySelector(".heatmap canvas");
    const evicted = getComputedStyle(document.querySelector(".legend .evicted")).backgroundColor.match(/\d+/g).map(Number);
    window.evicted = new Set();
    setInterval(() => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const cell = canvas.width / 32;
      for (let expert = 0; expert < 256; expert++) {
        const [x, y] = [(expert % 32) + 0.5, Math.floor(expert / 32) + 0.5].map((at) => Math.floor(at * cell));
        const at = 4 * (y * canvas.width + x);
        if (evicted.every((part, index) => Math.abs(part - data[at + index]) < 20)) window.evicted.add(expert);
      }
    }, 20);
"#;

#[test]
fn who_has_to_go_is_seen_to_go() {
    let server = start_tight(8);
    let Some(browser) = browser() else { return };
    browser.open(server.at);
    browser.until("document.querySelector('.heatmap canvas')?.ariaLabel?.includes(' 0 of 256')");
    browser.run(&format!("{{ {GLOW} }} {{ {EVICTED} }}"));
    browser.run("const i = document.querySelector('[data-name=max_tokens]'); i.value = '1'; i.dispatchEvent(new Event('input'))");
    browser.press(&format!("What is 7 plus 5?{ENTER}"));
    // Whoever goes later was not read just before, so that nothing outshines it.
    browser.until("window.glowed.size > 3 && window.glowing === 0");
    browser.run("window.evicted.clear()");
    browser.press(&format!("Go on.{ENTER}"));
    browser.until("window.evicted.size > 0");
}

#[test]
fn an_answer_streams_stops_and_is_asked_for_again() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.press(&format!("one{SHIFT}{ENTER}{SHIFT}two{ENTER}"));
    let mut job = take(&jobs);
    let prompt = job.request.prompt.len();
    assert_eq!(browser.text(".question .text"), "one\ntwo");
    assert_eq!(browser.text("#send"), "Stop");
    say(&mut job, Channel::Thinking, "Hm, let me see.");
    browser.until("document.querySelector('.thinking summary').textContent === 'Thinking…'");
    say(&mut job, Channel::Answer, "First");
    browser.until("document.querySelector('.answer .markdown').textContent === 'First'");
    say(&mut job, Channel::Answer, " and *second*.\n\nMore\u{2028}and more");
    browser.until("document.querySelector('.answer .markdown em')?.textContent === 'second'");
    browser.until("document.querySelector('#announcer').textContent.includes('First and second.')");
    browser.press(&ESCAPE.to_string());
    until(|| (job.listener)(Update::Waiting).is_break());
    browser.until(IDLE);
    assert!(browser.text(".answer .facts").contains("stopped"));
    let stays = browser.text(".answer .markdown p:last-child");
    assert!(
        stays.starts_with("More") && stays.ends_with("and more"),
        "what has come stays: {stays}"
    );

    browser.run("[...document.querySelectorAll('.answer button')].find(b => b.textContent === 'Again').click()");
    let mut again = take(&jobs);
    assert_eq!(again.request.prompt.len(), prompt, "the same question");
    say(&mut again, Channel::Answer, "Another.");
    end(&mut again);
    browser.until(&format!("{IDLE} && document.querySelectorAll('article').length === 2"));
    assert_eq!(browser.text(".answer .markdown"), "Another.");

    // The latest question is edited, and what followed it is gone.
    browser.run("document.querySelector('#prompt').focus()");
    browser.press(&UP.to_string());
    browser.press(&format!(" three{ENTER}"));
    answer(&jobs, "Edited.");
    browser.until("document.querySelector('.answer .markdown')?.textContent === 'Edited.'");
    assert_eq!(browser.text(".question .text"), "one\ntwo three");
}

/// What must never be in an answer, nor happen because of it.
const HOSTILE: &str = "<img src=x onerror=\"window.hacked=1\"> <script>window.hacked=2</script>\n\n\
    [a](javascript:window.hacked=3) [b](data:text/html,<script>1</script>) ![c](http://evil.example/x.png) \
    [d](JaVaScRiPt:alert(1)) [e](https://good.example/?q=1) <javascript:alert(1)> [f](/v1/models)\n\n\
    ```<script>\n</code></pre><script>window.hacked=4</script>\n```\n\n\
    | <b>x</b> | y |\n|---|---|\n| <svg onload=window.hacked=5> | [z](vbscript:x) |\n\n\
    # <iframe src=javascript:alert(1)>\n\n- <style>*{display:none}</style>\n\n> <object data=x>";

#[test]
fn a_hostile_answer_stays_text() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.press(&format!("{}{ENTER}", "<img src=x onerror=window.hacked=6>"));
    let mut job = take(&jobs);
    say(&mut job, Channel::Thinking, HOSTILE);
    say(&mut job, Channel::Answer, HOSTILE);
    end(&mut job);
    browser.until(IDLE);
    let foreign = "return document.querySelectorAll('#messages :is(img, script, svg, iframe, style, object, b)').length";
    assert_eq!(browser.run(foreign), 0);
    assert_eq!(browser.run("return window.hacked === undefined"), true);
    let links =
        browser.run("return [...document.querySelectorAll('#messages a')].map(a => a.href)");
    assert_eq!(
        links,
        serde_json::json!(["http://evil.example/x.png", "https://good.example/?q=1"])
    );
    let text = browser.text(".answer .markdown");
    for word in
        ["<img src=x onerror=", "<script>window.hacked=2</script>", "javascript:window.hacked=3"]
    {
        assert!(text.contains(word), "{text}");
    }
    assert!(browser.text(".question .text").starts_with("<img src=x"));
    let title = browser.text("#chat-list .title");
    assert!(title.starts_with("<img src=x"), "{title}");
}

/// Any text becomes none but these elements, and all of its words stay.
const ANY_TEXT: &str = r##"
    return import("/page/markdown.js").then(({ Markdown }) => {
      const parts = ["*", "**", "_", "`", "```", "\n", "\n\n", "[", "](", ")", "[a](javascript:b)", "[a](https://x.y/z)", "!", "<", ">", "> ", "- ", "1. ", "# ", "|", "|-|",
        "\\", "~~", "a", "b c", "<script>", "<img onerror=x>", "javascript:x", "https://x.y/z", "  ", "&lt;", "é", "\u{1F600}"];
      const tags = new Set(("DIV P H3 H4 H5 H6 HR BLOCKQUOTE UL OL LI STRONG EM DEL CODE PRE BR A SPAN HEADER BUTTON TABLE THEAD " +
        "TBODY TR TH TD").split(" "));
      const attributes = new Set(["class", "href", "target", "rel", "title", "tabindex", "type", "start"]);
      let seed = 1;
      const below = (limit) => (seed = (seed * 48271) % 2147483647) % limit;
      for (let round = 0; round < 400; round++) {
        const grown = new Markdown();
        let text = "";
        for (let at = below(40); at >= 0; at--) {
          text += parts[below(parts.length)];
          grown.update(text);
        }
        const whole = new Markdown();
        whole.update(text);
        if (!whole.element.isEqualNode(grown.element)) return `grown differs: ${JSON.stringify(text)}`;
        for (const element of whole.element.querySelectorAll("*")) {
          const strange = element.getAttributeNames().find((name) => !attributes.has(name));
          const unsafe = element.tagName === "A" && !/^(https?|mailto):/.test(element.getAttribute("href"));
          if (!tags.has(element.tagName) || strange || unsafe) return `${element.outerHTML} of ${JSON.stringify(text)}`;
        }
        const letters = (words) => words.replace(/[^abcé\u{1F600}]/gu, "");
        const code = whole.element.querySelectorAll(".code header").length;
        const bare = code === 0 && !text.includes("|") && !text.includes("](");
        if (bare && letters(whole.element.textContent) !== letters(text)) return `lost words: ${JSON.stringify(text)} ${whole.element.innerHTML}`;
      }
      for (const long of ["[".repeat(50000), "*a ".repeat(20000), "> ".repeat(20000), "- ".repeat(20000), "`a``".repeat(15000),
        "[a](".repeat(9000), "|".repeat(50000) + "\n|-|", "- a\n".repeat(5000), "_".repeat(19000) + "a"]) new Markdown().update(long);
      // Blanks and marks that could be tried again and again, and are not: nobody would wait for the end of it.
      const blanks = " ".repeat(1000000);
      for (const long of [`# a${blanks}b`, `# ${"#".repeat(1000000)}a`, "```" + blanks + "`", "~".repeat(1000000) + "`", `a|b\n-${blanks}a`,
        `[a](${" ".repeat(19000)}b\n\n`.repeat(1000)]) new Markdown().update(long);
      return "good";
    });
"##;

const TABLE_AND_CODE: &str = "<div class=\"table\" tabindex=\"0\"><table><thead><tr><th>a</th><th>b</th></tr></thead>\
    <tbody></tbody></table></div><div class=\"code\"><header><span class=\"muted small\">c</span>\
    <button class=\"quiet small\" type=\"button\">Copy</button></header>\
    <pre tabindex=\"0\"><code>e</code></pre></div>";

#[test]
fn markdown_becomes_what_it_says_and_nothing_else() {
    let Some((_server, browser, _)) = page_of_jobs() else { return };
    for (text, html) in [
        (
            "a **b** _c_ `d` ~~e~~",
            "<p>a <strong>b</strong> <em>c</em> <code>d</code> <del>e</del></p>",
        ),
        ("snake_case_name 2*3*4 ** x", "<p>snake_case_name 2<em>3</em>4 ** x</p>"),
        ("\\*a\\* ``x ` y``", "<p>*a* <code>x ` y</code></p>"),
        ("# One\ntext", "<h3>One</h3><p>text</p>"),
        ("##  a # b ## \n#\n# ##", "<h4>a # b</h4><p>#</p><h3></h3>"),
        ("a|b\n-|-  \n\n~~~  c  d\ne", TABLE_AND_CODE),
        (
            "- a\n- b\n  - c\n\n1. d\n2. e",
            "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li></ul><ol start=\"1\"><li>d</li><li>e</li></ol>",
        ),
        ("> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"),
        ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
        ("**unclosed and <b>", "<p>**unclosed and &lt;b&gt;</p>"),
        ("***both***", "<p><strong><em>both</em></strong></p>"),
    ] {
        let script = format!(
            "return import('/page/markdown.js').then(({{ Markdown }}) => {{ const m = new Markdown(); m.update({}); return m.element.innerHTML; }})",
            Value::from(text)
        );
        assert_eq!(browser.run(&script), html, "{text}");
    }
    assert_eq!(browser.run(ANY_TEXT), "good");
}

/// Texts whose contrast with what is behind them is less than WCAG AA wants.
pub(crate) const CONTRAST: &str = r##"
    const numbers = (colour) => {
      const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
      return colour.startsWith("color(srgb") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
    };
    const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
    const behind = (element) => {
      if (!element) return [255, 255, 255, 1];
      const own = numbers(getComputedStyle(element).backgroundColor);
      return own[3] === 1 ? own : over(own, behind(element.parentElement));
    };
    const light = (colour) => {
      const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one, other) => {
      const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
      return (bright + 0.05) / (dark + 0.05);
    };
    const found = [];
    let checked = 0;
    const check = (element, colour, least, what) => {
      const ground = behind(element);
      checked++;
      const reached = contrast(over(numbers(colour), ground), ground);
      if (reached < least) found.push(`${reached.toFixed(2)} ${what} ${element.outerHTML.slice(0, 90)}`);
    };
    for (const element of document.querySelectorAll("body *")) {
      if (!element.checkVisibility() || element.closest("svg")) continue;
      const style = getComputedStyle(element);
      const words = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== "");
      const size = parseFloat(style.fontSize);
      if (words) check(element, style.color, size >= 24 ? 3 : 4.5, "text");
      if (element.placeholder) check(element, getComputedStyle(element, "::placeholder").color, 4.5, "placeholder");
      if (element.matches("input, textarea, select, button:not(.quiet, .strong)")) check(element.parentElement, style.borderTopColor, 3, "edge");
    }
    document.querySelector("#prompt").focus();
    check(document.querySelector("#composer"), getComputedStyle(document.querySelector("#prompt")).outlineColor, 3, "focus");
    return { found, checked };
"##;

#[test]
fn everything_can_be_read_in_light_and_dark_and_on_a_phone() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.press(&format!("a question{ENTER}"));
    let mut job = take(&jobs);
    say(&mut job, Channel::Thinking, "thinking");
    let text = "# Head\n\n> quote\n\n- [link](https://x.y) `code`\n\n```rust\nlet wide = \
        \"a line of code that is a good deal wider than any phone that has ever been sold\";\n```\n\n\
        | a | b |\n|---|--:|\n| c | averylongwordthatdoesnotfitanywhereaveryverylongwordthatdoesnotfitanywhere |";
    say(&mut job, Channel::Answer, text);
    end(&mut job);
    browser.until(IDLE);
    browser.press(&format!("another{ENTER}"));
    drop(take(&jobs));
    browser.until("document.querySelectorAll('.trouble:not([hidden])').length === 1");
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)");
    browser.run("document.querySelector('#settings').showModal()");
    for theme in ["light", "dark"] {
        browser.run(&format!("document.documentElement.dataset.theme = '{theme}'"));
        let told = browser.run(CONTRAST);
        assert_eq!(told["found"], serde_json::json!([]), "{theme}");
        assert!(told["checked"].as_u64().unwrap() > 50, "{told}");
    }
    browser.run("document.querySelector('#settings').close()");
    browser.resize(360, 640);
    let within = "return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() \
        && !e.closest('.code pre, .table, .unseen, .skip') && e.getBoundingClientRect().right > 361).map(e => e.outerHTML.slice(0, 80))";
    assert_eq!(browser.run(within), serde_json::json!([]));
    let wide = "const t = document.querySelector('.table'); return t.scrollWidth > t.clientWidth";
    assert_eq!(browser.run(wide), true, "a table scrolls, and its words stay whole");
    browser.click("#open-machine");
    browser.until("document.querySelector('#machine').checkVisibility()");
    assert_eq!(browser.run(within), serde_json::json!([]));
    browser.click("#open-chats");
    browser.until("document.querySelector('#new-chat').checkVisibility()");
    assert_eq!(browser.run(within), serde_json::json!([]));
}

#[test]
fn conversations_settings_and_keys_are_kept_as_long_as_they_should() {
    let Some((server, browser, jobs)) = page_of_jobs() else { return };
    browser.run("document.querySelector('#messages').focus()");
    browser.press("/");
    browser.until("document.activeElement.id === 'prompt' && document.activeElement.value === ''");
    let set = |name: &str, value: &str| {
        browser.run(&format!(
            "const i = document.querySelector('[data-name={name}]'); i.value = '{value}'; i.dispatchEvent(new Event('input'))"
        ));
    };
    set("temperature", "0.25");
    set("seed", "7");
    set("top_k", "1.5");
    set("max_tokens", "5");
    browser.press(&format!("first{ENTER}"));
    let job = answer(&jobs, "One.");
    let sampling = job.request.sampling;
    assert_eq!((sampling.temperature, sampling.seed, job.request.max_tokens), (0.25, 7, Some(5)));
    assert_ne!(sampling.top_k, 1, "what is no whole number is not sent");
    browser.until(IDLE);
    browser.open(server.at);
    browser.until("document.querySelectorAll('#chat-list li').length === 1");
    browser.click("#chat-list .title");
    assert_eq!(browser.text(".answer .markdown"), "One.");
    browser.run("[...document.querySelectorAll('#chat-list button')].find(b => b.textContent === 'Rename').click()");
    browser.press(&format!("another name{ENTER}"));
    browser.until("document.querySelector('#chat-list .title')?.textContent === 'another name'");
    browser.run("[...document.querySelectorAll('#chat-list button')].find(b => b.textContent === 'Delete').click()");
    browser.until("document.querySelectorAll('#chat-list li, article').length === 0");
    browser.click("#toast button");
    browser.until("document.querySelectorAll('#chat-list li').length === 1");
    browser.until("document.querySelector('[data-name=temperature]').value === '0.25'");
}

#[test]
fn a_key_is_asked_for_and_errors_say_what_to_do() {
    let door = Door { key: Some("secret".to_owned()), loopback: true, ..Door::default() };
    let refuse = Script::Refuse(Refused::Full { waiting: 64 });
    let server = start_with(1, Some(Arc::new(refuse)), door);
    let Some(browser) = browser() else { return };
    browser.open(server.at);
    browser.until("document.querySelector('#ask-key').open");
    let enter = |key: &str| {
        browser.run("const k = document.querySelector('#key'); k.value = ''; k.focus()");
        browser.press(&format!("{key}{ENTER}"));
    };
    // One that no header can carry is not even tried.
    for (key, said) in [("sec\u{200B}ret", "A key has only "), ("wrong", "That was not the key.")] {
        enter(key);
        browser.until(&format!(
            "document.querySelector('#ask-key').open && document.querySelector('#key-trouble').textContent.startsWith('{said}')"
        ));
    }
    // Whoever does not want to enter it says when they do.
    browser.click("#key-cancel");
    browser.until("document.querySelector('#machine .state button')");
    assert_eq!(browser.run("return document.querySelector('#ask-key').open"), false);
    browser.click("#machine .state button");
    enter(" secret ");
    browser.until("document.querySelector('#model').textContent === 'demo'");
    assert_eq!(
        browser.run("return [localStorage.length, sessionStorage.length]"),
        serde_json::json!([0, 1])
    );
    browser.run("document.querySelector('#prompt').focus()");
    browser.press(&format!("hello{ENTER}"));
    browser.until("document.querySelector('.trouble:not([hidden])')");
    let trouble = browser.text(".trouble");
    assert!(trouble.contains("64 requests are waiting already"), "{trouble}");
    assert!(trouble.contains("Try again in 5 s."), "{trouble}");
}
