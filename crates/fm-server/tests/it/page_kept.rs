//! What the page keeps and shows beside the conversation: themes, files, limits, the state of the machine.

use fm_engine::{generate::Event, schedule::Update};
use serde_json::json;

use crate::{
    browser::{ENTER, browser},
    harness::start,
    page_in_browser::{IDLE, end, page_of_jobs, take},
};

#[test]
fn the_theme_is_kept_and_a_conversation_can_be_taken_away_as_a_file() {
    let Some((server, browser, jobs)) = page_of_jobs() else { return };
    let theme = "return document.documentElement.dataset.theme ?? ''";
    let paper = "return getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.run(theme), "");
    let light = browser.run(paper);
    browser.click("#theme");
    assert_eq!(browser.run(theme), "dark");
    browser.press(&format!("What is it? <b>{ENTER}"));
    end(&mut take(&jobs));
    browser.until(IDLE);
    browser.open(server.at);
    browser.until("document.querySelectorAll('#chat-list li').length === 1");
    assert_eq!(browser.run(theme), "dark", "the page was loaded again");
    assert_ne!(browser.run(paper), light);
    // The file, where a browser would save it.
    browser.run(
        "URL.createObjectURL = (file) => { file.text().then((text) => (window.saved = [file.name, file.type, text])); return '#'; }; \
         [...document.querySelectorAll('#chat-list button')].find(b => b.textContent === 'Export').click()",
    );
    browser.until("window.saved");
    let saved = browser.run("return window.saved");
    assert_eq!([&saved[0], &saved[1]], ["what-is-it-b.json", "application/json"]);
    let chat: serde_json::Value = serde_json::from_str(saved[2].as_str().unwrap()).unwrap();
    assert_eq!(chat["messages"][0], json!({"role": "user", "content": "What is it? <b>"}));
}

#[test]
fn the_oldest_conversations_go_where_there_is_no_room() {
    let server = start(1);
    let Some(browser) = browser() else { return };
    browser.open(server.at);
    browser.until("document.querySelector('#model').textContent === 'demo'");
    let kept = |script: &str| {
        browser.run(&format!(
            "return import('/page/conversations.js').then((conversations) => {{ {script} \
             return [conversations.list().map(({{ title }}) => title), localStorage.length]; }})"
        ))
    };
    let told = kept(
        "for (let n = 0; n < 103; n++) { const chat = conversations.fresh(); \
         chat.messages.push({ role: 'user', content: `no. ${n}` }); conversations.save(chat); }",
    );
    let titles = told[0].as_array().unwrap();
    assert_eq!((titles.len(), &titles[0], &titles[99]), (100, &json!("no. 102"), &json!("no. 3")));
    // The index is one more.
    assert_eq!(told[1], 101, "nothing is left of those that went");
    // What does not fit is there until the page is closed, costs no other, and somebody is told.
    let told = kept(
        "const chat = conversations.fresh(); \
         chat.messages.push({ role: 'user', content: 'x'.repeat(6e6) }); conversations.save(chat); \
         if (conversations.load(chat.id).messages[0].content.length !== 6e6) return 'lost';",
    );
    let titles = told[0].as_array().unwrap();
    assert_eq!((titles.len(), &titles[1], &titles[100]), (101, &json!("no. 102"), &json!("no. 3")));
    assert_eq!(told[1], 101, "all of the others");
    let said = browser.text("#toast");
    assert!(said.starts_with("This browser does not keep this conversation"), "{said}");
    browser.open(server.at);
    browser.until("document.querySelectorAll('#chat-list li').length === 100");
    browser.run("document.querySelectorAll('#chat-list .title')[99].click()");
    assert_eq!(browser.text(".question .text"), "no. 3");
    // What fits without some goes before them.
    let told = kept(
        "const chat = conversations.fresh(); \
         chat.messages.push({ role: 'user', content: 'y'.repeat(5.23e6) }); conversations.save(chat);",
    );
    let some = told[0].as_array().unwrap().len();
    assert!((3..100).contains(&some) && told[1] == some + 1, "{told}");
    let said = format!("{} old conversations had to go.", 101 - some);
    assert!(browser.text("#toast").contains(&said), "{}: {said}", browser.text("#toast"));
}

#[test]
fn settings_are_those_of_all_tabs_and_what_does_not_fit_is_not_shown() {
    let Some((_server, browser, _jobs)) = page_of_jobs() else { return };
    let set = |name: &str, value: &str| {
        browser.run(&format!(
            "const i = document.querySelector('[data-name={name}]'); i.value = '{value}'; i.dispatchEvent(new Event('input'))"
        ));
    };
    set("top_k", "5");
    // Another tab, which this one hears of a little later.
    browser.run(
        "localStorage['flash-moe.settings'] = JSON.stringify({ top_k: 5, system: 'Be brief.' })",
    );
    set("seed", "7");
    assert_eq!(
        browser.run("return JSON.parse(localStorage['flash-moe.settings'])"),
        json!({"top_k": 5, "system": "Be brief.", "seed": 7})
    );
    browser.run("dispatchEvent(new StorageEvent('storage', { key: 'flash-moe.settings' }))");
    assert_eq!(browser.run("return document.querySelector('#fields textarea').value"), "Be brief.");
    browser.click("#open-settings");
    set("seed", "-1");
    browser.click("#settings header button");
    browser.until("!document.querySelector('#settings').open");
    browser.until("document.querySelector('[data-name=seed]').value === '7'");
    assert_eq!(browser.run("return document.querySelectorAll('#fields :invalid').length"), 0);
}

#[test]
fn the_machine_says_how_far_a_prompt_is_and_what_the_disk_gives() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.press(&format!("question{ENTER}"));
    let mut job = take(&jobs);
    let part = Event::Prefill { done: 3, total: 4 };
    assert!((job.listener)(Update::Event(part)).is_continue());
    browser.until(
        "document.querySelector('.texts .reading')?.textContent.startsWith('No. 1 reads 75 % of ')",
    );
    end(&mut job);
    drop(job);
    browser.until("document.querySelector('.texts')?.textContent === 'Nobody is writing.'");
    let shown = browser.run(
        "return import('/page/machine.js').then(({ Machine }) => { \
           const machine = new Machine(); \
           machine.meet({ model: 'm', family: 'f', numerics: 'int15', threads: 1, reader: 'r', context: 5, slot_bytes: 1e6, \
             lossy: ['2 experts per token instead of 8', 'keys'], experts: [4], budget_bytes: 4e9, holds_everything: false, \
             limits: { age_s: 7200, disk_bytes_per_s: 2e9, memory_bytes_per_s: null } }); \
           machine.look({ texts: [[0, false, 0, 0, 70, 0]], waiting: 1, held_bytes: 3e9, map: '' }, \
             { decode: 12.3, prefill: 0, disk: 1.5e9, memory: 2e10, hits: 0.625 }); \
           return [...document.querySelectorAll('.meter')].map((meter) => \
             [meter.textContent, meter.querySelector('[role=meter]').ariaValueNow, meter.querySelector('[role=meter]').hidden]) \
             .concat([document.querySelector('.texts').textContent, document.querySelector('#machine > .lossy').textContent, document.querySelector('#machine > .muted.small').textContent]); })",
    );
    assert_eq!(
        shown,
        json!([
            ["Memory3.00 GB of 4.00 GB", "75", false],
            ["Disk1.50 of 2.00 GB/s", "75", false],
            ["DRAM20.00 GB/s, limit not measured", "0", true],
            ["Hits63 %", "63", false],
            "0 texts in the making, 1 waitingNo. 1 waits with 70 tokens",
            "Lossy: 2 experts per token instead of 8; keys",
            "f · int15 · 1 thread · reader r · context of 5 tokens · slots of 1 MB · limits measured 2 h ago",
        ])
    );
}
