// The texts of the page in English and Chinese. The English text is the key; {name} stands for a value.

const CHINESE = {
  // index.html
  "Attention explorer": "注意力浏览器",
  "Loading the runs …": "正在载入模型…",
  "Copy link": "复制链接",
  Language: "语言",
  "This page needs JavaScript.": "此页需要 JavaScript。",
  Runs: "模型",
  "Choose the models that read your text side by side.": "请选择要并排阅读文本的模型。",
  Review: "影评",
  "Type a review: every model labels it and shows what it attends to.": "输入一段影评：每个模型给出它的标签，并显示它关注的词。",
  "Text of the review": "影评文本",
  "Type a review": "输入一段英文影评",
  "without positions": "去掉位置信息",
  "Shuffle the words": "打乱词序",
  "Reset changes": "撤销所有改动",
  "Color scale": "颜色标度",
  "one for all maps": "所有图共用",
  "one per map": "每图各用",
  "Test reviews": "测试影评",
  "Reviews with known labels, which the selected run has not read in training.": "标签已知、所选模型训练时没有读过的影评。",
  "wrong label": "判断错误",
  "probability of at least 90 %": "概率至少 90 %",
  "the runs disagree": "模型之间不一致",
  "at least 400 words": "至少 400 个词",
  contains: "包含",
  of: "所用模型",
  Previous: "上一条",
  Next: "下一条",
  "Order probe": "词序测试",
  "Two sentences with the same words in a different order; the place of “not” determines the label. A model that ignores word order gives both the same probability.":
    "两个句子用词相同而顺序不同；“not” 的位置决定标签。忽略词序的模型对两句给出相同的概率。",
  "New pair": "换一对",
  "Click on a word below to remove it, and on a cell of a map to see its arithmetic.": "点击下面的词可将其去掉，点击图中的格子可查看其计算过程。",
  "Encoder-decoder": "编码器–解码器",
  "Type a source: the model writes its output symbol by symbol.": "输入源序列：模型逐个符号写出结果。",
  Source: "源序列",
  Beams: "束宽",
  "Length penalty": "长度惩罚",
  // things that are counted
  run: "个模型",
  word: "个词",
  head: "个头",
  dimension: "个维度",
  number: "个数",
  other: "个其他键",
  beam: "条束",
  "padded position": "个填充位置",
  // main.js
  "{parts} layer or head disabled": "停用了 {parts} 个层或头",
  "{parts} layers or heads disabled": "停用了 {parts} 个层或头",
  "{words} removed": "去掉了 {words}",
  "words shuffled, seed {seed}": "词序已打乱，种子 {seed}",
  "; ": "；",
  ", ": "，",
  "{label}, seed {seed}": "{label}，种子 {seed}",
  "; full color: {share}": "；最深颜色：{share}",
  "square root of the weight": "颜色为权重的平方根",
  "The server does not answer: start it again with python -m imdbattn.explore and open its new address; the part after # can be kept.":
    "服务器没有响应：请用 python -m imdbattn.explore 重新启动并打开新地址；# 之后的部分可以保留。",
  "Bug in this page: {message}": "此页出错：{message}",
  "Label: {label}. Review {place} of {matching} that match, of {of}; row {row}.": "标签：{label}。符合条件的 {matching} 条（共 {of} 条）中的第 {place} 条；第 {row} 行。",
  "Label: {label}": "标签：{label}",
  Copied: "已复制",
  "Copy it from the address bar": "请从地址栏复制",
  ", {skipped} skipped": "，跳过 {skipped} 个",
  // panel.js
  "Words that {label} reads": "{label} 读到的词",
  "seed {seed}, {share} of test reviews": "种子 {seed}，测试影评准确率 {share}",
  "seed {seed}, {share} of validation reviews": "种子 {seed}，验证影评准确率 {share}",
  "The label and its probability; the darker a word, the larger its share in the vector that is classified.": "标签及其概率；词的颜色越深，它在被分类的向量中所占份额越大。",
  "Each map shows how much each word (row) attends to each word (column).": "每张图表示每个词（行）对各个词（列）的注意力。",
  "In this file: {words} of {of} words, {precision}.": "此文件含 {of} 个词中的 {words} 个，{precision}。",
  "Its accuracy on all test reviews is {share} here ({moved} points).": "在全部测试影评上，此处的准确率为 {share}（{moved} 个百分点）。",
  "{words} in the middle of the review are not read.": "影评中部的 {words}没有被读取。",
  "{words} not in the model's vocabulary: read as <unk>.": "{words}不在模型词表中，均读作 <unk>。",
  "without changes: {label} {share} (now {moved})": "改动之前：{label} {share}（现在 {moved}）",
  "{points} points": "{points} 个百分点",
  skipped: "已跳过",
  "entropy {nats} of at most {most} nats": "熵 {nats}，最大 {most} nat",
  "layer {layer}": "第 {layer} 层",
  pooling: "池化",
  "head {head}": "第 {head} 头",
  "{name}, head {head}": "{name}第 {head} 头",
  "{name}, query of {label}": "{name}，{label} 的查询",
  "attention of {word} in {map}": "{word} 在{map}中的注意力",
  "share in the pooled vector, by attention rollout": "在池化向量中的份额（attention rollout）",
  "Shade: {what}; darkest: {share}": "着色：{what}；最深：{share}",
  "Words with the largest values": "数值最大的词",
  // matrix.js, positions.js
  "{title}: arrow keys move, Enter shows the arithmetic of a cell": "{title}：方向键移动，回车键显示格子的计算过程",
  "{title}: arrow keys move, Enter pins a row": "{title}：方向键移动，回车键固定一行",
  "Point at a cell to read its value.": "指向一个格子可读出其数值。",
  "largest: {values}": "最大：{values}",
  query: "查询",
  position: "位置",
  output: "输出",
  Positions: "位置",
  "What the model knows about the order of the words: nearby positions have similar vectors.": "模型如何得知词序：相邻位置的向量相近。",
  "Products of {table}": "内积：{table}",
  "These positions are not known to this page.": "此页不认识这种位置编码。",
  "Added to the scores, {layer}": "加到得分上的值，{layer}",
  "mean of the products by distance j − i": "内积均值（按距离 j − i）",
  "{head}, by distance j − i": "{head}，按距离 j − i",
  // cell.js
  "padded positions": "填充位置",
  "without mask": "不加掩码",
  "Arithmetic of a cell": "格子的计算过程",
  Close: "关闭",
  "Query, key and their products by dimension: arrow keys move": "查询、键及其逐维乘积：方向键移动",
  "dimension {number}": "第 {number} 维",
  "from −{most} (blue) to {most} (orange)": "从 −{most}（蓝）到 {most}（橙）",
  "{dimensions}, {range}; point at one to read its numbers": "{dimensions}，{range}；指向某一维可读出数值",
  "sum of the products": "乘积之和",
  "{score} score": "{score} 得分",
  "of q and k": "由 q 和 k 得出",
  scaled: "缩放后",
  "+ distance": "+ 距离项",
  "{added} for this distance": "此距离的值为 {added}",
  ": the score s": "：得分 s",
  "padding: no weight": "填充：没有权重",
  "none: padding is read as a word": "无：填充被当作词",
  "a word: s is unchanged": "是词：s 不变",
  "m = {most}, the largest s": "m = {most}，最大的 s",
  "the row's sum; weight {weight}": "该行之和；权重 {weight}",
  mask: "掩码",
  "From the product to the weight": "从乘积到权重",
  "key {name}": "键 {name}",
  key: "键",
  "score s": "得分 s",
  weight: "权重",
  "value v": "值 v",
  sum: "合计",
  "The last strip is y = Σ weight · v, the output for {query}.": "最后一条是 y = Σ 权重 · v，即 {query} 的输出。",
  "Add a padded position, as in a batch with a longer review, to see what the mask does.": "添加填充位置（如同批次中有更长的影评），看看掩码的作用。",
  "with {padded} and their mask": "有 {padded}并加掩码时",
  "with {padded} and without mask in the whole network": "有 {padded}且整个网络不加掩码时",
  "{label}: {before} without padding, {share} {how}.": "{label}：没有填充时 {before}，{how} {share}。",
  "{numbers} from {least} to {most}": "{numbers}，从 {least} 到 {most}",
  // sequence.js
  "seed {seed}, {share} of {split} outputs are correct": "种子 {seed}，{split} 输出正确率 {share}",
  "Not in the vocabulary, read as <unk>: {unknown}.": "不在词表中，读作 <unk>：{unknown}。",
  "Steps of the output": "输出的各步",
  "Attention to the source": "对源序列的注意力",
  "Attention: output (rows) to source (columns)": "注意力：输出（行）对源序列（列）",
  "source symbol": "源符号",
  "No attention: the decoder uses a single vector of the source.": "没有注意力：解码器只用源序列的一个向量。",
  "Previous step": "上一步",
  "Next step": "下一步",
  "Step {step} of {steps}: the most probable symbols": "第 {step} 步，共 {steps} 步：概率最大的符号",
  "(nothing)": "（空）",
  " (not ended)": "（未结束）",
  "log probability": "对数概率",
  score: "得分",
};

/** The language in the address, or null. */
export const chosenLanguage = ["en", "zh"].find((one) => new URLSearchParams(globalThis.location.hash.slice(1)).get("lang") === one) ?? null;

/** "en" or "zh": that in the address, else that of the browser. */
export const language = chosenLanguage ?? (globalThis.navigator.language?.startsWith("zh") ? "zh" : "en");

/** The text in the page's language, with values in place of {name}. A text that is not in the table stays as it is. */
export function t(text, values = {}) {
  const translated = (language === "zh" && Object.hasOwn(CHINESE, text) && CHINESE[text]) || text;
  return translated.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? values[name] : whole));
}

/** Shows the page again in another language; the address keeps its state. */
export function chooseLanguage(name) {
  const values = new URLSearchParams(location.hash.slice(1));
  values.set("lang", name);
  history.replaceState(null, "", `#${values}`);
  location.reload();
}

/** Translates the texts of index.html. */
export function translate(page) {
  page.documentElement.lang = language;
  page.title = t(page.title);
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const words = node.data.trim();
    if (words && !node.parentElement.closest("script")) node.data = node.data.replace(words, () => t(words));
  }
  for (const node of page.body.querySelectorAll("[placeholder], [aria-label]")) {
    for (const name of ["placeholder", "aria-label"]) if (node.hasAttribute(name)) node.setAttribute(name, t(node.getAttribute(name)));
  }
}
