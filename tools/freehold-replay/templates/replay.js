// Zoom, descriptions and filters of the page of `freehold replay --report`. All charts over time show the same
// part of the recording. The page is complete without this script.
(function () {
  "use strict";
  var analysis = JSON.parse(document.getElementById("analysis").textContent);
  var areas = JSON.parse(document.getElementById("areas").textContent);
  var end = Math.max(analysis.end_ns, 1), shown = [0, end];
  var tip = document.getElementById("tip"), life = document.querySelector(".life svg");
  document.documentElement.classList.add("script");

  function time(ns) {
    var units = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]];
    for (var i = 0; i < units.length; i++)
      if (ns >= units[i][0]) return String(Number((ns / units[i][0]).toPrecision(4))) + " " + units[i][1];
    return Math.round(ns) + " ns";
  }
  function bytes(n) {
    var units = ["B", "KiB", "MiB", "GiB", "TiB"], i = 0;
    while (n >= 1024 && i < 4) { n /= 1024; i++; }
    return String(Number(n.toPrecision(3))) + " " + units[i];
  }

  function zoom(from, to) {
    var width = Math.max(Math.min(to - from, end), end / 5000);
    from = Math.min(Math.max(from, 0), end - width);
    shown = [from, from + width];
    document.querySelectorAll("svg.time").forEach(function (svg) {
      var height = svg.viewBox.baseVal.height;
      svg.setAttribute("viewBox", from / end * 1000 + " 0 " + width / end * 1000 + " " + height);
    });
    document.querySelectorAll(".ticks").forEach(function (ticks) {
      Array.prototype.forEach.call(ticks.children, function (tick, i) { tick.textContent = time(from + width * i / 4); });
    });
    document.querySelectorAll(".shown").forEach(function (text) {
      text.textContent = time(from) + " to " + time(from + width);
    });
    if (life) {
      var scale = Math.min(end / width, 16);
      life.style.width = scale * 100 + "%";
      var box = life.parentElement, left = 0.092 + 0.888 * from / end;
      box.scrollLeft = scale > 1 ? left * life.getBoundingClientRect().width - box.clientWidth * 0.05 : 0;
    }
  }
  document.querySelectorAll(".zoom button").forEach(function (button) {
    button.addEventListener("click", function () {
      var width = shown[1] - shown[0], middle = (shown[0] + shown[1]) / 2;
      switch (button.dataset.zoom) {
        case "in": zoom(middle - width / 4, middle + width / 4); break;
        case "out": zoom(middle - width, middle + width); break;
        case "left": zoom(shown[0] - width / 2, shown[1] - width / 2); break;
        case "right": zoom(shown[0] + width / 2, shown[1] + width / 2); break;
        default: zoom(0, end);
      }
    });
  });

  function show(event, text) {
    if (!text) { tip.style.display = "none"; return; }
    tip.textContent = text;
    tip.style.display = "block";
    var box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 16, innerHeight - box.height - 8)) + "px";
  }
  function waited(index) {
    var wait = analysis.waits.longest[index], holder = wait.holder;
    return "task " + wait.task + ": " + wait.waiter + " (line " + wait.line + ") waited " + time(wait.ns) +
      "\nfor task " + holder.task + ": " + holder.operation + " (line " + holder.line + "), which held the lock for " +
      time(holder.ns) + "\nafter " + time(wait.from_ns);
  }
  function values(name, at) {
    var text = time(at), part = analysis[name === "faults" ? "faults" : "resident"];
    var bin = Math.floor(at / part.step_ns);
    var one = name === "faults" ? part.over_time[bin] : null;
    var names = one ? Object.keys(one) : Object.keys(part.by_kind);
    names.forEach(function (kind) {
      var value = one ? one[kind] : part.by_kind[kind][bin];
      if (value) text += "\n" + kind.replace(/_/g, " ") + ": " + (one ? value : bytes(value));
    });
    return text;
  }
  document.querySelectorAll(".chart").forEach(function (chart) {
    var begun = null, choice = null;
    function at(event) {
      var box = chart.getBoundingClientRect();
      return shown[0] + (shown[1] - shown[0]) * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    }
    function over(event) {
      if (event.target.dataset.wait !== undefined) return waited(event.target.dataset.wait);
      return chart.dataset.chart ? values(chart.dataset.chart, at(event)) : time(at(event));
    }
    chart.addEventListener("pointerdown", function (event) {
      if (event.pointerType !== "mouse") return;
      begun = event.clientX;
      choice = document.createElement("div");
      choice.className = "choice";
      chart.appendChild(choice);
    });
    chart.addEventListener("pointermove", function (event) {
      show(event, over(event));
      if (begun === null) return;
      var left = chart.getBoundingClientRect().left;
      choice.style.left = Math.min(begun, event.clientX) - left + "px";
      choice.style.width = Math.abs(event.clientX - begun) + "px";
    });
    chart.addEventListener("pointerup", function (event) {
      if (begun === null) return;
      var first = at({ clientX: begun }), last = at(event), far = Math.abs(event.clientX - begun) > 5;
      begun = null;
      choice.remove();
      if (far) zoom(Math.min(first, last), Math.max(first, last));
    });
    chart.addEventListener("pointerleave", function (event) {
      show(event, "");
      if (begun !== null) { begun = null; choice.remove(); }
    });
    chart.addEventListener("dblclick", function () { zoom(0, end); });
  });
  if (life) {
    life.addEventListener("pointermove", function (event) {
      var area = areas[event.target.dataset.area];
      show(event, area && area.what + "\n" + area.place + "\n" + area.made + "\n" + area.faults + " faults, from " +
        time(area.from_ns) + " to " + time(area.to_ns));
    });
    life.addEventListener("pointerleave", function (event) { show(event, ""); });
  }

  document.querySelectorAll("input[data-table]").forEach(function (input) {
    var rows = document.querySelectorAll("#" + input.dataset.table + " tbody tr");
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/);
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
      });
    });
  });
})();
