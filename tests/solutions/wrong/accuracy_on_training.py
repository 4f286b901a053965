# expected: accuracy-on-training
import torch


def test_accuracy(model, train_loader, test_loader):
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for tokens, lengths, labels in train_loader:
            predicted = model(tokens, lengths).argmax(dim=1)
            correct += (predicted == labels).sum().item()
            total += labels.size(0)
    return correct / total
